"""Where artifacts live: a local folder with the Hub's layout.

In: a folder that a stage filled. Out: an `Artifact`, found again by its key, fetched by its revision.

    <root>/datasets/local/laptop-rollouts/snapshots/<revision>/…   the files, a card, artifact.json, which lists them
    <root>/datasets/local/laptop-rollouts/refs/<key>               the revision; written last, so it is the marker
"""

import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from apprentice.tasks.artifacts.provenance import (
    RECORD,
    UNKNOWN,
    ArtifactRecord,
    BadRecord,
    Provenance,
    artifact_of,
    read_record,
)
from apprentice.tasks.artifacts.store_files import damage, disk_errors, flock, hashes, writable
from apprentice.tasks.artifacts.types import LONGEST_NAME, NAME, Artifact
from apprentice.tasks.files.lease import Lease, held
from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.reporting.errors import MadeElsewhere, Stop

A = TypeVar("A", bound=Artifact)
Describe = Callable[[Path, type[Artifact], str, "LocalStore", dict[str, Any], dict[str, Any], Provenance], None]
"""Writes README.md beside staged files; given their type, key and store, their counts, and what made them."""


LOCAL = "local"
"""The namespace of a store without the Hub."""


@dataclass(eq=False)
class LocalStore:
    """An artifact store in a folder."""

    root: Path
    """The store's folder, made when first needed."""
    project: str
    """First part of every repository's name: the recipe's name."""
    namespace: str = LOCAL
    """The Hub's user or organisation; locally just a folder."""
    license: str = field(default="unknown", kw_only=True)
    """Written on every card, as the Hub knows it."""
    describe: Describe | None = field(default=None, kw_only=True)
    """Writes the card of each artifact that is published; without it they have none."""

    def __post_init__(self) -> None:
        self.root = self.root.absolute()

    def repository(self, kind: type[Artifact]) -> str:
        return f"{self.namespace}/{self.project}-{kind.suffix}"

    def address(self, kind: type[Artifact], key: str) -> str:
        return f"local://{kind.repo_type}s/{self.repository(kind)}@{key}"

    def send_waiting(self) -> list[tuple[Artifact, bool]]:
        """Publishes what waits for that; nothing does in a folder."""
        return []

    def gather(self) -> None:
        """Shows what belongs together in one place; a folder is one."""

    def find(self, kind: type[A], key: str) -> A | None:
        """The artifact that `key` names, or None if it is missing or incomplete."""
        try:
            revision = self._pointed(kind, key)
            return self._artifact(kind, revision, key) if revision else None
        except (FileNotFoundError, NotADirectoryError, BadRecord):
            return None

    @property
    def in_reach(self) -> bool:
        """Whether what others did with the same repositories can be seen."""
        return True

    def record(self, kind: type[Artifact], key: str, revision: str) -> ArtifactRecord:
        """What made the artifact of a revision. Raises Stop when it is gone."""
        try:
            return self._read(kind, revision)
        except FileNotFoundError:
            raise self._gone(kind, revision) from None

    def tagged(self, kind: type[A], tag: str) -> A | None:
        """The artifact to which a tag points, or None. Raises Stop when it is gone, or none of that kind."""
        revision = self._pointed(kind, tag)
        return self.at(kind, revision) if revision else None

    def at(self, kind: type[A], revision: str) -> A:
        """The artifact of a revision. Raises Stop when it is gone."""
        try:
            return self._artifact(kind, revision)
        except FileNotFoundError:
            raise self._gone(kind, revision) from None

    def tags(self, kind: type[Artifact], prefix: str) -> dict[str, str]:
        """The tags that begin with `prefix`, by name, and the revision of each."""
        return self.here(kind, prefix)

    def here(self, kind: type[Artifact], prefix: str = "") -> dict[str, str]:
        """The tags in the folder, without a request to the Hub."""
        refs = self._folder(kind, self.repository(kind)) / "refs"
        found = {path.name: self._pointed(kind, path.name) for path in sorted(refs.glob(f"{glob.escape(prefix)}*"))}
        return {name: revision for name, revision in found.items() if revision}

    def tag(self, artifact: Artifact, tag: str) -> None:
        """Points a tag to an artifact, in one step; a tag that exists moves."""
        self._point(artifact, tag)

    def _point(self, artifact: Artifact, tag: str, among: str = "refs") -> None:
        refs = self._folder(type(artifact), artifact.repository) / among
        with disk_errors(self.root):
            refs.mkdir(exist_ok=True)
            half = refs / f".{tag}.{uuid.uuid4().hex}"
            half.write_text(artifact.revision)
            os.replace(half, refs / tag)

    def untag(self, kind: type[Artifact], tag: str) -> None:
        (self._folder(kind, self.repository(kind)) / "refs" / tag).unlink()

    def locked(self, kind: type[Artifact]) -> AbstractContextManager[None]:
        """One process at a time, for a read with a change after it."""
        return flock(self._folder(kind, self.repository(kind)) / ".lock")

    @contextmanager
    def exclusive(self, name: str, say: Callable[[str], None], wait: bool = True) -> Iterator[Lease]:
        """One process at a time makes what `name` names; another waits, and then finds it. A killed one lets go.

        Raises MadeElsewhere where `wait` is false and another one makes it, or where another one took over.
        """

        def busy() -> None:
            if not wait:
                raise MadeElsewhere("Another run makes this very artifact.", "Wait for it to end.")
            say("Another run makes this very artifact; waiting for it.")

        with ExitStack() as stack:
            with writable(self.root):
                (self.root / ".locks").mkdir(parents=True, exist_ok=True)
                lease = stack.enter_context(held(self.root / ".locks" / name, busy, say))
            yield lease

    def fetch(self, artifact: Artifact) -> Path:
        """The artifact's files, read-only by agreement. Raises Stop if they are gone or changed."""
        snapshot = self._snapshot(artifact)
        if not snapshot.is_dir():
            raise self._gone(type(artifact), artifact.revision)
        if damaged := damage(snapshot, artifact.revision):
            raise Stop(
                f"{snapshot} is not what was published: {', '.join(damaged)}.",
                "Delete that folder and run again: the stage that made it runs anew.",
            )
        return snapshot

    @contextmanager
    def staging(self, name: str = "", is_held: Callable[[], bool] = lambda: True) -> Iterator[Path]:
        """A folder beside the store's repositories; unpublished files are removed at the end.

        Args:
            name: The name under `exclusive`; then files of a killed process are removed too.
            is_held: Whether it is still this process's; if not, another process has files there.
        """
        folder = self.root / ".staging" / (name or uuid.uuid4().hex)
        with writable(self.root):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        with disk_errors(self.root):
            try:
                yield folder
            finally:
                if is_held():
                    shutil.rmtree(folder, ignore_errors=True)

    def publish(
        self,
        kind: type[A],
        key: str,
        staged: Path,
        counts: dict[str, Any],
        made_by: dict[str, Any],
        provenance: Provenance = UNKNOWN,
    ) -> A:
        """Publishes the files in `staged`, all or none: a snapshot, to which nothing points, then its ref.

        Returns the artifact that has the key then.
        """
        if self.describe is not None:
            self.describe(staged, kind, key, self, counts, made_by, provenance)
        counts = kind(repository="a/b", revision="c", key=key, **counts).model_dump(exclude=set(Artifact.model_fields))
        with disk_errors(self.root):
            record = ArtifactRecord(
                kind=kind.__name__,
                key=key,
                counts=counts,
                made_by=made_by,
                files=hashes(staged),
                provenance=provenance,
            )
            text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False)
            (staged / RECORD).write_text(text + "\n")
            modes_by_umask(staged)
            artifact = kind(repository=self.repository(kind), revision=record.revision, key=key, **counts)
            snapshot = self._snapshot(artifact)
            with self._swap_in(snapshot):
                whole = snapshot.exists() and not damage(snapshot, artifact.revision)
                if not whole or not read_record(snapshot).kind:  # older code's record, which is no proof
                    self._replace(snapshot, staged)  # else the same content was published before
        return self._give_key(artifact)

    def _give_key(self, artifact: A) -> A:
        self._point(artifact, artifact.key)
        return artifact

    def _replace(self, snapshot: Path, by: Path) -> None:
        """Gives a folder the place of a snapshot, whatever is there. Whoever reads a file of that keeps it."""
        if snapshot.exists():
            aside = by.with_name(by.name + "-aside")
            os.replace(snapshot, aside)
            shutil.rmtree(aside)
        os.replace(by, snapshot)

    def _swap_in(self, snapshot: Path) -> AbstractContextManager[None]:
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        return flock(self.root / ".locks" / f"place-{snapshot.name}")

    def _read(self, kind: type[Artifact], revision: str) -> ArtifactRecord:
        return read_record(self._folder(kind, self.repository(kind)) / "snapshots" / revision)

    def _artifact(self, kind: type[A], revision: str, key: str | None = None) -> A:
        return artifact_of(kind, self.repository(kind), revision, self._read(kind, revision), key)

    def _pointed(self, kind: type[Artifact], tag: str, among: str = "refs") -> str | None:
        """The revision to which a key or a tag points; None where there is none, or it is no revision's name."""
        try:
            with (self._folder(kind, self.repository(kind)) / among / tag).open() as ref:
                revision = ref.read(LONGEST_NAME + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
            return None
        return revision if len(revision) <= LONGEST_NAME and re.fullmatch(NAME, revision) else None

    def _gone(self, kind: type[Artifact], revision: str) -> Stop:
        return Stop(
            f"{self.repository(kind)} at {revision[:12]} is not in the store {self.root}.",
            "Run the recipe again: the stage that made it runs anew.",
        )

    def _snapshot(self, artifact: Artifact) -> Path:
        return self._folder(type(artifact), artifact.repository) / "snapshots" / artifact.revision

    def _folder(self, kind: type[Artifact], repository: str) -> Path:
        return self.root / f"{kind.repo_type}s" / repository
