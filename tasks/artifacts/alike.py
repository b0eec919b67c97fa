"""Finds earlier artifacts of a store that can take the place of a new one.

In: the store, a kind or an artifact. Out: the artifacts, with their records or their folders.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, ArtifactRecord, artifact_of
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.reporting import announce
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
    settings: dict[str, Any],
    inputs: dict[str, str] | None = None,
    ignoring: dict[str, tuple[str, ...]] | None = None,
) -> Iterator[tuple[A, Path]]:
    """Artifacts in the store's folder that were made under these settings of these inputs, the newest first, each with
    its folder. Others may differ. One that is damaged is left out, and said.

    Args:
        settings: By the stage's argument, as its record has them; `stage` and `version` are those of the stage.
        inputs: The revisions of some of its inputs.
        ignoring: Fields of settings that may differ as well.
    """
    wanted, of = _without(settings, ignoring or {}), inputs or {}
    for found, record in newest_first(store, kind, store.here(kind)):
        made = record.made_by
        own = _without(made.get("settings", {}), ignoring or {})
        own |= {"stage": made.get("stage"), "version": made.get("version")}
        given = made.get("inputs", {})
        if all(own.get(name) == each for name, each in wanted.items()) and of.items() <= given.items():
            try:
                folder = store.fetch(found)
            except Stop as stop:
                announce.warn(f"An earlier result is not used: {stop.cause}")
                continue
            yield found, folder


def _without(settings: dict[str, Any], ignoring: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return settings | {
        name: {field: value for field, value in settings[name].items() if field not in fields}
        for name, fields in ignoring.items()
        if isinstance(settings.get(name), dict)
    }


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
