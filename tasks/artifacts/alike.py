"""Finds earlier artifacts of a store that can take the place of a new one.

In: the store, a kind or an artifact. Out: the artifacts with their records. Nothing is fetched.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, ArtifactRecord, artifact_of
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.reporting.errors import Stop

A = TypeVar("A", bound=Artifact)


def newest_first(store: LocalStore, kind: type[A], tags: dict[str, str]) -> list[tuple[A, ArtifactRecord]]:
    """The artifacts of a kind that these tags name, with what made them. Those that are gone are left out."""
    found = {}
    for key, revision in tags.items():
        try:
            record = store.record(kind, key, revision)
        except Stop:
            continue
        found[revision] = artifact_of(kind, store.repository(kind), revision, record), record
    return sorted(found.values(), key=lambda each: (each[1].provenance.made_at, each[0].key), reverse=True)


def made_alike(
    store: LocalStore,
    kind: type[A],
    agrees: Callable[[dict[str, Any], dict[str, str]], bool],
    version: int | None = None,
) -> list[A]:
    """Artifacts in the store's folder whose settings and inputs agree with those of a new one, the newest first.

    Args:
        agrees: Given the settings, with the stage's name as `stage`, and the inputs' revisions.
        version: Of the stage; None if any will do.
    """
    return [
        found
        for found, record in newest_first(store, kind, store.here(kind))
        if version in (None, record.made_by.get("version"))
        and agrees(
            record.made_by.get("settings", {}) | {"stage": record.made_by.get("stage")},
            record.made_by.get("inputs", {}),
        )
    ]


def first_alike(store: LocalStore, artifact: A) -> A:
    """The first artifact with the same files and counts, made by the same stage: what was made of it is found again.

    Looks into the store's folder. Returns the artifact itself where there is no earlier one.
    """
    own = store.record(type(artifact), artifact.key, artifact.revision)
    alike = [
        found
        for found, record in newest_first(store, type(artifact), store.here(type(artifact)))
        if _content(record) == _content(own)
    ]
    return alike[-1] if alike else artifact


def _content(record: ArtifactRecord) -> tuple[object, ...]:
    files = {name: digest for name, digest in record.files.items() if name != CARD}
    return files, record.counts, record.made_by.get("stage"), record.made_by.get("version")
