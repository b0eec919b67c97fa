"""The exports of a model, from the records of a store."""

from apprentice.tasks.artifacts.alike import newest_first
from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Checkpoint, Exported, Release


def exports_of(store: LocalStore, checkpoint: Checkpoint) -> list[Exported]:
    """Return the exports of a model, or of the model behind a release, the newest first."""
    revisions = {checkpoint.revision}
    if isinstance(checkpoint, Release):
        trained = node_of(store, parent(checkpoint), {}).inputs.get("trained")
        revisions |= {trained.named.revision} if trained else set()
    made = newest_first(store, Exported, store.tags(Exported, ""))
    return [exported for exported, record in made if record.made_by["inputs"].get("checkpoint") in revisions]
