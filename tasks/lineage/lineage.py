"""Where an artifact comes from: all its inputs, back to the first, and every training episode.

In: a key, and where artifacts lie: a folder, or the Hub with that folder in front. Out: `Lineage`.
Records have everything; files are read for the episodes only, and of a model on the Hub only the list of its training
episodes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Parent
from apprentice.tasks.artifacts.types import Checkpoint, KeptRollouts, Rollouts, models_of_a_run
from apprentice.tasks.files.question_lists import LEARNED
from apprentice.tasks.lineage.locate import lines_of, locate
from apprentice.tasks.lineage.node import Node, node_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import CollectSpec

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
