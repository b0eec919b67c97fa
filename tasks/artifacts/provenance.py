"""The record beside every artifact: its stage, its inputs, its code, and the hash of each file.

In: a running stage. Out: artifact.json. Two parts: the content and its making enter the revision, so that the
same work has the same revision on any machine; the circumstances (code, recipe, time, place) and the card do not.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from apprentice.tasks.artifacts.types import LONGEST_NAME, NAME, REPOSITORY, Artifact
from apprentice.tasks.reporting.errors import Stop

RECORD = "artifact.json"
CARD = "README.md"
LARGEST = 4 * 2**20
"""Bytes of a record that are read; ours are some thousand."""
A = TypeVar("A", bound=Artifact)


class BadRecord(Stop):
    """What stands where a record should stand is none, or not the one that is meant."""


def _within(name: str) -> str:
    """A file's path below its artifact: relative, without detours."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or {"\\", "\0"} & set(name):
        raise ValueError("a file's path leads out of the artifact")
    return name


FileName = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_within)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Parent(BaseModel):
    """An artifact from which another one was made. An unknown field is empty."""

    model_config = ConfigDict(frozen=True)

    kind: str
    repository: str = Field(pattern=f"^$|{REPOSITORY}")
    revision: str = Field(pattern=f"^$|{NAME}")
    key: str = Field(pattern=f"^$|{NAME}")


class Provenance(BaseModel):
    """The circumstances of one making."""

    model_config = ConfigDict(frozen=True)

    stage: str = ""
    """Where the stage is defined: `module:name`."""
    code: str = ""
    """The version of this code, see `code_version` in tasks/engine/stage.py."""
    recipe: dict[str, Any] = {}
    """The run's recipe, without where its servers and its store were."""
    made_at: str = ""
    """UTC, ISO 8601."""
    pool: str = ""
    worker: str = ""
    inputs: dict[str, Parent] = {}
    """By the argument's name."""


UNKNOWN = Provenance()


class ArtifactRecord(BaseModel):
    """artifact.json."""

    model_config = ConfigDict(frozen=True)

    kind: str = ""
    """Name of the artifact's class."""
    key: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    counts: dict[str, Any]
    made_by: dict[str, Any]
    """Stage, its version, settings, inputs' revisions, packages' versions."""
    files: dict[FileName, Sha256]
    """SHA-256 by path."""
    provenance: Provenance = Provenance()

    @field_validator("made_by")
    @classmethod
    def _is_a_making(cls, made_by: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(made_by.get("settings", {}), dict):
            raise ValueError("settings are no mapping")
        inputs = made_by.get("inputs", {})
        if not isinstance(inputs, dict) or not all(isinstance(revision, str) for revision in inputs.values()):
            raise ValueError("inputs are no revisions by name")
        return made_by

    @property
    def revision(self) -> str:
        """40 hex digits over the artifact and its inputs, with the hash of every file but the card."""
        named = self.model_dump(mode="json", exclude={"provenance": True, "files": {CARD}})
        canonical = json.dumps(named, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:40]


def read_record(folder: Path) -> ArtifactRecord:
    """The record of an artifact's folder. Raises FileNotFoundError; BadRecord where it is none."""
    file = folder / RECORD
    if file.is_symlink() or file.is_dir():
        raise BadRecord(f"{file} is no file.", _REMEDY)
    with file.open("rb") as opened:
        return record_from(opened.read(LARGEST + 1), str(file))


def record_from(content: bytes, where: str) -> ArtifactRecord:
    """The record that a file holds. Raises BadRecord."""
    if len(content) > LARGEST:
        raise BadRecord(f"{where} is no record of an artifact: it is larger than {LARGEST:,} bytes.", _REMEDY)
    try:
        return ArtifactRecord.model_validate_json(content)
    except (ValidationError, RecursionError) as error:
        raise BadRecord(f"{where} is no record of an artifact: {_first(error)}.", _REMEDY) from None


def artifact_of(kind: type[A], repository: str, revision: str, record: ArtifactRecord, key: str | None = None) -> A:
    """The artifact that a record describes. Raises BadRecord where it is of another kind or revision, or of another key
    than what pointed to it."""
    where = f"{repository}@{key or record.key}"
    if record.kind != kind.__name__:
        raise BadRecord(f"{where} is recorded as {record.kind[:40] or 'nothing'}, not as {kind.__name__}.", _REMEDY)
    if record.revision != revision:
        raise BadRecord(f"{where} is not what its revision {revision[:12]} names: its record was changed.", _REMEDY)
    if key not in (None, record.key):
        raise BadRecord(f"{where} leads to the artifact of another key, {record.key[:40]}.", _REMEDY)
    try:
        return kind(repository=repository, revision=revision, key=record.key, **record.counts)
    except (ValidationError, TypeError) as error:
        raise BadRecord(f"{where} has counts that cannot be: {_first(error)}.", _REMEDY) from None


_REMEDY = "Somebody or something changed it: delete its tag (in a folder: its file in refs/) to have it made anew."


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        mistake = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(str(part)[:40] for part in mistake["loc"])
        return f"{at + ': ' if at else ''}{mistake['msg'].removeprefix('Value error, ')}"[:200]
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0][:200]


def parent(artifact: Artifact) -> Parent:
    """An input, as its name in a record."""
    return Parent(
        kind=type(artifact).__name__,
        repository=artifact.repository,
        revision=artifact.revision,
        key=artifact.key,
    )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields each value of nested mappings as JSON, by its path with dots."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, f"{path}.{name}".lstrip("."))
    else:
        yield path, json.dumps(value, ensure_ascii=False)
