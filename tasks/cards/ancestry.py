"""What an artifact that is being made comes from, for its card, as far as the store still has it.

In: what makes the artifact. Out: its inputs, their inputs, and so on, each with its record.
Why: a card tells of the whole making, of which a stage knows only the last step. An ancestor that is gone ends the way
back and nothing else: whoever asks gets None, or less.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import ArtifactRecord, Parent, Provenance
from apprentice.tasks.artifacts.types import Artifact, Decision, Evaluation, Verdict, kind_named
from apprentice.tasks.reporting.errors import Stop

JUDGEMENTS = (Decision, Evaluation, Verdict)
"""What is said about a model; nothing was learned from what they were made from."""


class Ancestry:
    """An artifact and the way back from it.

    Attributes:
        name: Its kind, repository, revision and key; the revision is empty for one that is being made.
        record: What made it; None when it is gone.
    """

    def __init__(self, store: LocalStore, name: Parent, record: ArtifactRecord | None):
        self.store = store
        self.name = name
        self.record = record

    @property
    def kind(self) -> type[Artifact] | None:
        """Its class; None for a name that this code does not know."""
        try:
            return kind_named(self.name.kind)
        except KeyError:
            return None

    @property
    def settings(self) -> dict[str, Any]:
        return self.record.made_by.get("settings", {}) if self.record else {}

    @property
    def counts(self) -> dict[str, Any]:
        return self.record.counts if self.record else {}

    @cached_property
    def inputs(self) -> dict[str, "Ancestry"]:
        """By the argument's name; none for what is gone, or was recorded without them."""
        given = self.record.provenance.inputs if self.record else {}
        return {argument: Ancestry(self.store, name, _record(self.store, name)) for argument, name in given.items()}

    def is_a(self, *kinds: type[Artifact]) -> bool:
        return self.kind is not None and issubclass(self.kind, kinds)

    def ancestors(self) -> list["Ancestry"]:
        """The inputs, then theirs, each once; of what judges only the judgement itself."""
        found: dict[str, Ancestry] = {}
        ahead = list(self.inputs.values())
        while ahead:
            at = ahead.pop(0)
            if at.name.revision not in found:
                found[at.name.revision] = at
                ahead += [] if at.is_a(*JUDGEMENTS) else at.inputs.values()
        return list(found.values())

    def nearest(self, *kinds: type[Artifact]) -> "Ancestry | None":
        """Itself or its nearest ancestor of these kinds; None where there is none, or the way is lost."""
        return next((each for each in [self, *self.ancestors()] if each.is_a(*kinds)), None)

    def environment(self) -> dict[str, Any] | None:
        """The environment in which it was made, judged, or its nearest ancestor was made: an EnvironmentSpec as JSON.

        Judged first: GRPO may have trained in another one than that on which the model is judged.
        """
        judged = [each for name, each in self.inputs.items() if name == "judged"]
        looked_at = [self, *judged, *self.ancestors()]
        return next((env for each in looked_at if (env := each.settings.get("environment"))), None)

    def fetch(self) -> Path | None:
        """Its files, or None when they are gone."""
        if self.record is None or self.kind is None:
            return None
        named = self.name.model_dump(exclude={"kind"})
        try:
            return self.store.fetch(self.kind(**named, **self.record.counts))
        except Stop:
            return None


def ancestry_of(
    store: LocalStore,
    kind: type[Artifact],
    key: str,
    counts: dict[str, Any],
    made_by: dict[str, Any],
    provenance: Provenance,
) -> Ancestry:
    """The ancestry of what is being made."""
    name = Parent(kind=kind.__name__, repository=store.repository(kind), revision="", key=key)
    made = {"key": key, "counts": counts, "made_by": made_by, "files": {}, "provenance": provenance}
    return Ancestry(store, name, ArtifactRecord(kind=kind.__name__, **made))


def _record(store: LocalStore, name: Parent) -> ArtifactRecord | None:
    try:
        return store.record(kind_named(name.kind), name.key, name.revision)
    except (KeyError, Stop):  # a kind that this code does not know; one that is gone
        return None
