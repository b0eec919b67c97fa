"""One artifact and its inputs, as far as the store still has them.

In: the name of an artifact, or of one that is being made. Out: `Node`, from which cards, lineages and replays are read.
A missing artifact keeps its name and ends the way back. Older code recorded only the revision of an input, which is
then looked for in the folder.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import RECORD, ArtifactRecord, BadRecord, Parent, artifact_of, read_record
from apprentice.tasks.artifacts.types import (
    Artifact,
    Decision,
    Evaluation,
    Rollouts,
    Verdict,
    artifact_type,
    kind_or_none,
)
from apprentice.tasks.reporting.errors import Stop

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
