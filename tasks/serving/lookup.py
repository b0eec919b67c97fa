"""The exports of a model, from the records of a store."""

from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Parent
from apprentice.tasks.artifacts.types import Checkpoint, Exported, Release


def exports_of(store: LocalStore, checkpoint: Checkpoint) -> list[Exported]:
    """Return the exports of a model, or of the model behind a release, the newest first."""
    revisions = {checkpoint.revision}
    if isinstance(checkpoint, Release):
        named = Parent(kind=Release.__name__, **checkpoint.model_dump(include={"repository", "revision", "key"}))
        trained = node_of(store, named, {}).inputs.get("trained")
        revisions |= {trained.named.revision} if trained else set()
    found = []
    for key, revision in store.tags(Exported, "").items():
        where = {"repository": store.repository(Exported), "revision": revision, "key": key}
        node = node_of(store, Parent(kind=Exported.__name__, **where), {})
        if node.record and node.record.made_by["inputs"].get("checkpoint") in revisions:
            found.append(node)
    found.sort(key=lambda each: each.record.provenance.made_at or "", reverse=True)  # type: ignore[union-attr]
    return [each.artifact for each in found]  # type: ignore[misc]
