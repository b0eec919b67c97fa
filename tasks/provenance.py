"""What is written beside every artifact: what made it, from what, by which code, and the hash of each file.

In: a running stage. Out: artifact.json. Two parts: what names the content and its making enters the revision, so that
the same work has the same revision on any machine; the circumstances (code, recipe, time, place) and the card do not.
"""

import hashlib
import json
import subprocess
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from apprentice.tasks.artifacts import NAME, REPOSITORY, Artifact

RECORD = "artifact.json"
CARD = "README.md"


class Parent(BaseModel):
    """An artifact from which another one was made. What is not known is empty."""

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
    """The version of this code, see `code_version`."""
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
    key: str = Field(pattern=NAME)
    counts: dict[str, Any]
    made_by: dict[str, Any]
    """Stage, its version, settings, inputs' revisions, packages' versions."""
    files: dict[str, str]
    """SHA-256 by path."""
    provenance: Provenance = Provenance()

    @property
    def revision(self) -> str:
        """40 hex digits over what was made and of what, with the hash of every file but the card."""
        named = self.model_dump(mode="json", exclude={"provenance": True, "files": {CARD}})
        canonical = json.dumps(named, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:40]


def parent(artifact: Artifact) -> Parent:
    """An input, as its name in a record."""
    return Parent(
        kind=type(artifact).__name__,
        repository=artifact.repository,
        revision=artifact.revision,
        key=artifact.key,
    )


@cache
def code_version() -> str:
    """The commit of this code, "with changes" where files of it differ from that; its version where it is a package."""
    folder = Path(__file__).resolve().parent.parent
    try:
        installed: Distribution | None = distribution("apprentice")
    except PackageNotFoundError:
        installed = None
    said = "apprentice" if installed is None else f"apprentice {installed.version}"
    if (folder / ".git").exists():
        commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
        if commit is not None:
            return f"{said}, commit {commit}{', with changes' if changes else ''}"
    source = json.loads((installed and installed.read_text("direct_url.json")) or "{}")
    commit = source.get("vcs_info", {}).get("commit_id")
    return f"{said}, commit {commit}" if commit else said


def _git(folder: Path, *command: str) -> str | None:
    """What git says; None without git, or for a folder of another user, whom it does not trust."""
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
