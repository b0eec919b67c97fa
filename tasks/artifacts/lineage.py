"""One artifact and its inputs, as far as the store still has them.

In: the name of an artifact, or of one that is being made. Out: `Node`, from which cards, lineages and replays are read.
A missing artifact keeps its name and ends the way back. Older code recorded only the revision of an input, which is
then looked for in the folder.

Where an artifact comes from: all its inputs, back to the first, and every training episode.

In: a key, and where artifacts lie: a folder, or the Hub with that folder in front. Out: `Lineage`.
Records have everything; files are read for the episodes only, and of a model on the Hub only the list of its training
episodes.

`apprentice lineage`: where an artifact comes from, as a tree for people.

In: a `Lineage`. Out: a tree; an artifact that occurs twice is shown whole once, and then by its name.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.locate import lines_of, locate
from apprentice.tasks.artifacts.provenance import RECORD, ArtifactRecord, BadRecord, Parent, artifact_of, read_record
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Decision,
    Evaluation,
    KeptRollouts,
    Rollouts,
    Verdict,
    artifact_type,
    kind_or_none,
    models_of_a_run,
)
from apprentice.tasks.episodes.record import LEARNED
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import who_played
from apprentice.tasks.settings.spec import CollectSpec

JUDGEMENTS = (Decision, Evaluation, Verdict)
"""What judges a model; nothing was learned from what these were made from."""
TAKEN = "take_rollouts"
"""The stage that takes rollouts from a dataset."""


@dataclass(eq=False)
class Node:
    """An artifact and its inputs, which are read on first use."""

    store: LocalStore
    named: Parent
    """Its kind, repository, revision and key; the revision is empty for one that is being made."""
    record: ArtifactRecord | None
    """What made it; None where it is gone."""
    _known: dict[str, "Node"]
    """By revision, shared by all nodes of a lineage: each record is read once."""

    @property
    def kind(self) -> type[Artifact] | None:
        return kind_or_none(self.named.kind)

    @property
    def ref(self) -> str:
        return f"{self.named.repository}@{self.named.key}"

    @property
    def settings(self) -> dict[str, Any]:
        return self.record.made_by.get("settings", {}) if self.record else {}

    @property
    def counts(self) -> dict[str, Any]:
        return self.record.counts if self.record else {}

    @cached_property
    def inputs(self) -> dict[str, "Node"]:
        """Its direct inputs, by the argument's name; none for a missing one."""
        if self.record is None:
            return {}
        recorded = self.record.provenance.inputs
        found = {}
        for name, revision in self.record.made_by.get("inputs", {}).items():
            if revision not in self._known:
                # the revision in `made_by` enters the key; the one in `provenance` only repeats it
                known = name in recorded
                named = recorded[name].model_copy(update={"revision": revision}) if known else None
                self._known[revision] = node_of(self.store, named or _older(self.store, revision), self._known)
            found[name] = self._known[revision]
        return found

    @property
    def artifact(self) -> Artifact:
        """The reference that a stage takes. Raises Stop if the artifact no longer exists."""
        if self.record is None or self.kind is None:
            raise Stop(
                f"{self.ref} (revision {self.named.revision[:12]}) no longer exists, or it has no readable record.",
                "Run the recipe again to make it, or pass another location with --store or --hub.",
            )
        if not self.record.kind:  # older code's, for which nothing but a lineage asks
            where = {"repository": self.named.repository, "revision": self.named.revision, "key": self.named.key}
            return self.kind.model_construct(**where, **self.record.counts)
        return artifact_of(self.kind, self.named.repository, self.named.revision, self.record)

    def is_a(self, *kinds: type[Artifact]) -> bool:
        return self.kind is not None and issubclass(self.kind, kinds)

    def ancestors(self) -> list["Node"]:
        """The inputs, then theirs, each once; of what judges only the judgement itself."""
        found: dict[str, Node] = {}
        ahead = list(self.inputs.values())
        while ahead:
            at = ahead.pop(0)
            if at.named.revision not in found:
                found[at.named.revision] = at
                ahead += [] if at.is_a(*JUDGEMENTS) else at.inputs.values()
        return list(found.values())

    def nearest(self, *kinds: type[Artifact]) -> "Node | None":
        """Itself or its nearest ancestor of these kinds; None where there is none, or the way is lost."""
        return next((each for each in [self, *self.ancestors()] if each.is_a(*kinds)), None)

    @property
    def is_of_a_dataset(self) -> bool:
        """Whether its rollouts were taken from a dataset, also if they were rescored: no teacher played them."""
        rollouts = self.nearest(Rollouts)
        above = [rollouts, *rollouts.ancestors()] if rollouts else []
        return any(each.record and each.record.made_by.get("stage") == TAKEN for each in above if each.is_a(Rollouts))

    def environment(self) -> dict[str, Any] | None:
        """The environment in which it was judged or made, or its nearest ancestor was: an EnvironmentSpec as JSON.

        Judged first: GRPO may have trained in another one than that on which the model is judged.
        """
        judged = [each for name, each in self.inputs.items() if name == "judged"]
        looked_at = [self, *judged, *self.ancestors()]
        return next((env for each in looked_at if (env := each.settings.get("environment"))), None)

    def fetch(self) -> Path | None:
        """Its files; None where they are gone."""
        try:
            return self.store.fetch(self.artifact)
        except Stop:
            return None


def node_of(store: LocalStore, named: Parent, known: dict[str, Node]) -> Node:
    """The node of a published artifact, or of one that is gone."""
    kind = kind_or_none(named.kind)
    if kind is None or not re.fullmatch("[0-9a-f]{40}", named.revision):
        return Node(store, named, None, known)
    named = named.model_copy(update={"repository": store.repository(kind)})
    try:
        record = store.record(kind, named.key, named.revision)
    except Stop:
        record = None
    return Node(store, named, record, known)


def _older(store: LocalStore, revision: str) -> Parent:
    """An input of which nothing but the revision was written down."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        for path in sorted(store.root.glob(f"*/{store.namespace}/{store.project}-*/snapshots/{revision}/{RECORD}")):
            try:
                record = read_record(path.parent)
            except BadRecord:
                continue
            kind = artifact_type(path.parents[4].name, path.parents[2].name)
            name = record.kind or (kind.__name__ if kind else "")
            repository = f"{store.namespace}/{path.parents[2].name}"
            return Parent(kind=name, repository=repository, revision=revision, key=record.key)
    return Parent(kind="", repository="", revision=revision, key="")


EPISODES = {Rollouts: "rollouts.jsonl", KeptRollouts: "kept.jsonl"}
"""Where the teacher's episodes stand."""


class Lineage:
    def __init__(self, store: LocalStore, named: Parent):
        self.store = store
        self.root = node_of(store, named, {})
        self._played: dict[str, list[tuple[int, str]]] = {}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """By revision, each after its inputs: the root is the last one. Without recursion: a champion's
        lineage reaches back through all champions before it."""
        seen: set[str] = set()
        done: dict[str, Node] = {}
        waiting = [self.root]
        while waiting:
            node = waiting[-1]
            if node.named.revision not in seen:
                seen.add(node.named.revision)
                waiting += [each for each in node.inputs.values() if each.named.revision not in seen]
            else:
                waiting.pop()
                done.setdefault(node.named.revision, node)
        return done

    def played(self, node: Node) -> list[tuple[int, str]]:
        """Seed and question of each of the teacher's episodes that an artifact holds."""
        if node.named.revision not in self._played:
            name = next((name for kind, name in EPISODES.items() if node.kind and issubclass(node.kind, kind)), "")
            with _as_rows(node, name):
                rows = map(json.loads, self._lines(node, name))
                self._played[node.named.revision] = [(row["seed"], _question(row["messages"])) for row in rows]
        return self._played[node.named.revision]

    def learned(self, node: Node) -> list[dict[str, Any]]:
        """Every episode that a checkpoint learned from; of those that the teacher played, which artifact holds them."""
        with _as_rows(node, LEARNED):
            rows = list(map(json.loads, self._lines(node, LEARNED)))
            rows = [row | {name: row[name] for name in ("stage", "seed", "question")} for row in rows]
        held = {each: kept.ref for kept in self._sft_rollouts(node) for each in self.played(kept)}
        return [
            row | {"rollouts": held.get((row["seed"], row["question"]))}
            if row["stage"] == models_of_a_run()[1]
            else row
            for row in rows
        ]

    @cached_property
    def episodes(self) -> list[dict[str, Any]]:
        """What the models learned from which stand nearest; for the teacher's own artifacts, what those hold."""
        found, looked_at, waiting = {}, set(), [self.root]
        while waiting:
            node = waiting.pop()
            if node.is_a(Checkpoint):
                rows = self.learned(node)
            else:
                rows = [
                    {"stage": CollectSpec.section, "seed": seed, "question": text, "rollouts": node.ref}
                    for seed, text in (self.played(node) if node is self.root else [])
                ]
                above = [] if rows else [*node.inputs.values()][::-1]
                waiting += [each for each in above if each.named.revision not in looked_at]
            looked_at.add(node.named.revision)
            found |= {json.dumps(row): row for row in rows}  # two models may share what they learned from
        return list(found.values())

    def as_json(self) -> dict[str, Any]:
        """One document for machines, the newest artifact first."""
        nodes = list(self.nodes.values())[::-1]
        records = [node.record for node in nodes if node.record]
        made_in = [node.settings.get("environment") for node in nodes]
        return {
            "root": self.root.named.key,
            "artifacts": [_as_json(node) for node in nodes],
            "recipe": self.root.record.provenance.recipe if self.root.record else {},
            "code": list(dict.fromkeys(code for record in records if (code := record.provenance.code))),
            "environments": list({json.dumps(each): each for each in made_in if each}.values()),
            "episodes": self.episodes,
        }

    def _sft_rollouts(self, node: Node) -> Iterator[Node]:
        """The kept rollouts of a model and of the models it was trained from; not of those it was compared with."""
        waiting = [node]
        while waiting:
            above = waiting.pop().inputs.values()
            yield from (each for each in above if each.kind is KeptRollouts)
            waiting += [each for each in above if each.is_a(Checkpoint)]

    def _lines(self, node: Node, name: str) -> Iterator[bytes]:
        """A file's lines; none where the artifact is gone or has no such file. Raises Stop where it is not whole."""
        if node.record is None or name not in node.record.files:
            return
        if node.is_a(Checkpoint):  # of a model its weights are not wanted
            yield from lines_of(self.store, node.artifact, name, node.record.files[name])
            return
        with (self.store.fetch(node.artifact) / name).open("rb") as file:
            yield from file


def lineage_of(key: str, root: Path, hub: str | None = None) -> Lineage:
    """The lineage of the artifact of that key. Raises Stop as `locate` does."""
    return Lineage(*locate(key, root, hub))


@contextmanager
def _as_rows(node: Node, name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Stop(
            f"{name} of {node.ref} is not what its name says ({type(error).__name__}).", "Make it anew."
        ) from error


def _question(messages: list[dict[str, Any]]) -> str:
    return messages[1]["content"] if len(messages) > 1 else ""


def _as_json(node: Node) -> dict[str, Any]:
    about = node.named.model_dump()
    if node.record is None:
        return about | {"gone": True}
    return about | node.record.model_dump(mode="json", include={"counts", "made_by", "provenance", "files"})


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
