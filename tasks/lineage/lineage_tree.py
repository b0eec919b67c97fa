"""`apprentice lineage`: where an artifact comes from, as a tree for people.

In: a `Lineage`. Out: a tree; an artifact that occurs twice is shown whole once, and then by its name.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from apprentice.tasks.lineage.lineage import Lineage
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.settings.endpoint import who_played

PIECES = 12
"""Ranges, or missing seeds, that are named; of more than that only the number is told."""
APART = 50
"""Seeds that may be missing in a row before another range begins."""
MATTERS = (
    *("model", "revision", "base_url", "hidden_size", "layers", "window", "windows", "examined"),
    *("seed", "batch_size", "gradient_accumulation", "learning_rate", "epochs", "stop_at_token_accuracy", "max_rows"),
    "held_out",
    *("max_steps", "num_generations", "beta", "temperature", "reward", "decoding", "samples", "protocol"),
    *("as_of", "metric", "margin"),
)
"""The settings that a line has room for; all of them are in artifact.json, and in --json."""


def as_tree(lineage: Lineage) -> Tree:
    """The root, and below each artifact its inputs."""
    tree = Tree(_words(lineage, lineage.root))
    shown = {lineage.root.named.revision}
    waiting = [(tree, *each) for each in reversed(lineage.root.inputs.items())]
    while waiting:  # without recursion: a champion's lineage reaches back through all champions before it
        branch, name, node = waiting.pop()
        if node.named.revision in shown:
            branch.add(f"[bold]{escape(name)}[/]: {escape(node.ref)}, as above")
            continue
        shown.add(node.named.revision)
        below = branch.add(f"[bold]{escape(name)}[/]: {_words(lineage, node)}")
        waiting += [(below, *each) for each in reversed(node.inputs.items())]
    return tree


def condensed(seeds: Iterable[int]) -> str:
    """Seeds for people: "seeds 0 to 59 without 7, 12"; distant seeds are several ranges."""
    ordered = sorted(set(seeds))
    groups = _near(ordered, APART)[:PIECES]
    ranges = [_range(group) for group in groups]
    more = len(ordered) - sum(map(len, groups))
    return f"{'seed' if len(ordered) == 1 else 'seeds'} {'; '.join(ranges)}" + (f"; and {more} more" if more else "")


def _near(seeds: list[int], apart: int) -> list[list[int]]:
    """The seeds in groups, within which no two neighbours are further apart."""
    groups: list[list[int]] = []
    for seed in seeds:
        if groups and seed - groups[-1][-1] <= apart:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return groups


def _words(lineage: Lineage, node: Node) -> str:
    """The line of one artifact."""
    named, record = node.named, node.record
    if record is None:
        what = node.ref if named.repository else "an input of which older code wrote down no more"
        return f"{escape(what)}, revision {named.revision[:12]}: [yellow]not there[/]"
    kind = (node.kind.__doc__ or "").partition("\n")[0].rstrip(".") if node.kind else named.kind
    made_by, made = record.made_by, record.provenance
    place = " · ".join(filter(None, (made.pool, made.worker)))
    at = f" {made.made_at}" if made.made_at else ", nobody wrote down when"
    lines = [
        f"{escape(kind)}",
        f"[dim]{escape(node.ref)}, revision {named.revision[:12]}[/]",
        f"[dim]made{at} by {made_by.get('stage')}, version {made_by.get('version', 'unknown')}"
        f"{escape(f' on {place}' if place else '')}; {escape(_code(made.code))}[/]",
    ]
    lines += [f"[dim]{escape(short)}[/]"] if (short := ", ".join(_leaves(node.settings))) else []
    lines += [f"[dim]environment {escape(_environment(it))}[/]"] if (it := node.settings.get("environment")) else []
    return "\n".join([*lines, *map(escape, _episodes(lineage, node))])


def _episodes(lineage: Lineage, node: Node) -> Iterator[str]:
    if played := lineage.played(node):
        yield f"{len(played):,} episodes, {condensed(seed for seed, _ in played)}"
    rows = lineage.learned(node)
    for stage in dict.fromkeys(row["stage"] for row in rows):
        of_it = [row for row in rows if row["stage"] == stage]
        lost = sum("rollouts" in row and row["rollouts"] is None for row in of_it)
        without = f" ({lost:,} of them in no rollouts of this lineage)" if lost else ""
        yield f"learned in {stage} from {len(of_it):,} episodes, {condensed(row['seed'] for row in of_it)}{without}"


def _code(version: str) -> str:
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", version) or "by which code, nobody wrote down"


def _environment(spec: dict[str, Any]) -> str:
    chosen = [value for value in spec.get("settings", {}).values() if isinstance(value, str)]
    revision = f", revision {spec['revision'][:12]}" if spec.get("revision") else ""
    return f"{' '.join([str(spec.get('name')), *chosen])}, version {spec.get('version')}{revision}"


def _leaves(settings: dict[str, Any]) -> Iterator[str]:
    """The settings that matter most."""
    if settings.get("scripted_error_rate") is not None:
        yield who_played(settings)
        return
    for name, value in settings.items():
        if name == "environment" or value is None:
            continue
        if isinstance(value, dict) and set(value) == {"start", "size"}:
            yield f"{name} {value['start']} to {value['start'] + value['size'] - 1}"
        elif isinstance(value, dict):
            yield from _leaves(value)
        elif name in MATTERS:
            yield f"{name} {value}"


def _range(group: list[int]) -> str:
    """One range: its seeds, or the missing ones, whichever is shorter."""
    runs = _near(group, 1)
    if len(runs) == 1:
        return _run(runs[0][0], runs[0][-1])
    gaps = [(one[-1] + 1, next_[0] - 1) for one, next_ in itertools.pairwise(runs)]
    if len(gaps) > PIECES and len(runs) > PIECES:
        return f"{_run(group[0], group[-1])} ({len(group):,} of {group[-1] - group[0] + 1:,})"
    if len(group) >= (group[-1] - group[0] + 1) / 2:
        return f"{_run(group[0], group[-1])} without {', '.join(itertools.starmap(_run, gaps))}"
    return ", ".join(_run(run[0], run[-1]) for run in runs)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}{', ' if last == first + 1 else ' to '}{last}"
