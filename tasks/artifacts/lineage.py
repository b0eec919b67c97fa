"""Where an artifact comes from: all that it was made from, back to the first, and every episode that it learned from.

In: a key, and where artifacts lie: a folder, or the Hub with that folder in front. Out: `Lineage`.
Records say it all; files are read for the episodes only, and of a model on the Hub none but the list of what it learned
from. What is gone stays in the lineage by its name. Older code wrote down no more of an input than its revision, which
is then looked for in the folder.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.locate import kind_of, kind_or_none, lines_of, locate
from apprentice.tasks.artifacts.provenance import RECORD, ArtifactRecord, BadRecord, Parent, artifact_of, read_record
from apprentice.tasks.artifacts.trust import WEIGHTS
from apprentice.tasks.artifacts.types import Artifact, Checkpoint, KeptRollouts, Rollouts
from apprentice.tasks.episodes.learned import LEARNED
from apprentice.tasks.reporting.errors import Stop

EPISODES = {Rollouts: "rollouts.jsonl", KeptRollouts: "kept.jsonl"}
"""Where the teacher's episodes stand."""


class Node(NamedTuple):
    """One artifact of a lineage."""

    named: Parent
    record: ArtifactRecord | None
    """None where it is gone."""
    inputs: dict[str, Parent]
    """By the argument's name."""

    @property
    def kind(self) -> type[Artifact] | None:
        return kind_or_none(self.named.kind)

    @property
    def ref(self) -> str:
        return f"{self.named.repository}@{self.named.key}"

    @property
    def artifact(self) -> Artifact:
        """The reference that a stage takes. Raises Stop where it is gone."""
        if self.record is None or self.kind is None:
            raise Stop(
                f"{self.ref} (revision {self.named.revision[:12]}) is not there any more, or nothing says what it is.",
                "Run the recipe again: what made it runs anew. Or name another place with --store or --hub.",
            )
        if not self.record.kind:  # older code's, for which nothing but a lineage asks
            where = {"repository": self.named.repository, "revision": self.named.revision, "key": self.named.key}
            return self.kind.model_construct(**where, **self.record.counts)
        return artifact_of(self.kind, self.named.repository, self.named.revision, self.record)


class Lineage:
    """An artifact and all that it was made from.

    Attributes:
        store: Where all of it lies.
        nodes: By revision, each after what it was made from: the last one is what was asked for.
    """

    def __init__(self, store: LocalStore, named: Parent):
        self.store = store
        self.nodes = _back_from(store, named)
        self._played: dict[str, list[tuple[int, str]]] = {}

    @property
    def root(self) -> Node:
        return list(self.nodes.values())[-1]

    def above(self, node: Node) -> list[Node]:
        """What a node was made from directly."""
        return [self.nodes[parent.revision] for parent in node.inputs.values()]

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
            rows = [_learned(json.loads(line)) for line in self._lines(node, LEARNED)]
        held = {each: kept.ref for kept in self._taught_by(node) for each in self.played(kept)}
        return [
            row | {"rollouts": held.get((row["seed"], row["question"]))} if row["stage"] == "sft" else row
            for row in rows
        ]

    @cached_property
    def episodes(self) -> list[dict[str, Any]]:
        """What the models learned from which stand nearest; for the teacher's own artifacts, what those hold."""
        found, looked_at, waiting = {}, set(), [self.root]
        while waiting:
            node = waiting.pop()
            if node.kind and issubclass(node.kind, Checkpoint):
                rows = self.learned(node)
            elif node is self.root:
                rows = [{"stage": "collect", "seed": seed, "question": text} for seed, text in self.played(node)]
                rows = [row | {"rollouts": node.ref} for row in rows]
                waiting += self.above(node)[::-1] if not rows else []
            else:
                rows = []
                waiting += [each for each in self.above(node)[::-1] if each.named.revision not in looked_at]
            looked_at.add(node.named.revision)
            found |= {json.dumps(row): row for row in rows}  # two models may share what they learned from
        return list(found.values())

    def is_pickled(self, node: Node) -> bool:
        """Whether a student is another model by its name whose weights may be pickled: to load them can run code."""
        with _as_rows(node, WEIGHTS):
            source = json.loads(b"".join(self._lines(node, WEIGHTS)) or b"{}")
            return not source.get("safetensors_only", True)

    def as_json(self) -> dict[str, Any]:
        """One document for machines, the newest artifact first."""
        nodes = list(self.nodes.values())[::-1]
        records = [node.record for node in nodes if node.record]
        made_in = [record.made_by.get("settings", {}).get("environment") for record in records]
        return {
            "root": self.root.named.key,
            "artifacts": [_as_json(node) for node in nodes],
            "recipe": self.root.record.provenance.recipe if self.root.record else {},
            "code": list(dict.fromkeys(code for record in records if (code := record.provenance.code))),
            "environments": list({json.dumps(each): each for each in made_in if each}.values()),
            "episodes": self.episodes,
        }

    def _taught_by(self, node: Node) -> Iterator[Node]:
        """The kept rollouts of a model and of the models it was trained from; not of those it was compared with."""
        waiting = [node]
        while waiting:
            above = self.above(waiting.pop())
            yield from (each for each in above if each.kind is KeptRollouts)
            waiting += [each for each in above if each.kind and issubclass(each.kind, Checkpoint)]

    def _lines(self, node: Node, name: str) -> Iterator[bytes]:
        """A file's lines; none where the artifact is gone or has no such file. Raises Stop where it is not whole."""
        if node.record is None or name not in node.record.files:
            return
        if issubclass(type(node.artifact), Checkpoint):  # of a model its weights are not wanted
            yield from lines_of(self.store, node.artifact, name, node.record.files[name])
            return
        with (self.store.fetch(node.artifact) / name).open("rb") as file:
            yield from file


def lineage_of(key: str, root: Path, hub: str | None = None) -> Lineage:
    """The lineage of the artifact of that key. Raises Stop as `locate` does."""
    return Lineage(*locate(key, root, hub))


def _back_from(store: LocalStore, first: Parent) -> dict[str, Node]:
    """Without recursion: a champion's lineage reaches back through all champions before it."""
    seen: dict[str, Node] = {}
    done: dict[str, Node] = {}
    waiting = [first]
    while waiting:
        named = waiting[-1]
        if named.revision not in seen:
            node = seen[named.revision] = _node(store, named)
            waiting += [parent for parent in node.inputs.values() if parent.revision not in seen]
        else:
            waiting.pop()
            done.setdefault(named.revision, seen[named.revision])
    return done


def _node(store: LocalStore, named: Parent) -> Node:
    kind = kind_or_none(named.kind)
    if kind is None or not re.fullmatch("[0-9a-f]{40}", named.revision):
        return Node(named, None, {})
    named = named.model_copy(update={"repository": store.repository(kind)})
    try:
        record = store.record(kind, named.key, named.revision)
    except Stop:
        return Node(named, None, {})
    known = record.provenance.inputs
    inputs = {
        # the record's revision holds for what is in `made_by`; what stands beside it only names the same
        name: known[name].model_copy(update={"revision": revision}) if name in known else _older(store, revision)
        for name, revision in record.made_by.get("inputs", {}).items()
    }
    return Node(named, record, inputs)


def _older(store: LocalStore, revision: str) -> Parent:
    """An input of which nothing but the revision was written down."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        for path in sorted(store.root.glob(f"*/{store.namespace}/{store.project}-*/snapshots/{revision}/{RECORD}")):
            try:
                record = read_record(path.parent)
            except BadRecord:
                continue
            kind = kind_of(path.parents[4].name, path.parents[2].name)
            name = record.kind or (kind.__name__ if kind else "")
            repository = f"{store.namespace}/{path.parents[2].name}"
            return Parent(kind=name, repository=repository, revision=revision, key=record.key)
    return Parent(kind="", repository="", revision=revision, key="")


@contextmanager
def _as_rows(node: Node, name: str) -> Iterator[None]:
    """Raises Stop for a file that holds something else than its name says."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Stop(
            f"{name} of {node.ref} is not what its name says ({type(error).__name__}).", "Make it anew."
        ) from error


def _learned(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: row[name] for name in ("stage", "seed", "question")}


def _question(messages: list[dict[str, Any]]) -> str:
    return messages[1]["content"] if len(messages) > 1 else ""


def _as_json(node: Node) -> dict[str, Any]:
    about = node.named.model_dump()
    if node.record is None:
        return about | {"gone": True}
    return about | node.record.model_dump(mode="json", include={"counts", "made_by", "provenance", "files"})
