"""Where artifacts live: a local folder with the Hub's layout.

In: a folder that a stage filled. Out: an `Artifact`, found again by its key, fetched by its revision.

    <root>/datasets/local/laptop-rollouts/snapshots/<revision>/…   the files, a card, artifact.json, which lists them
    <root>/datasets/local/laptop-rollouts/refs/<key>               the revision; written last, so it is the marker
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from apprentice.tasks.artifacts import Artifact
from apprentice.tasks.errors import MadeElsewhere, Stop

A = TypeVar("A", bound=Artifact)
RECORD = "artifact.json"


class LocalStore:
    """An artifact store in a folder.

    Args:
        root: The store's folder, made when first needed.
        project: First part of every repository's name: the recipe's name.
        namespace: The Hub's user or organisation; locally just a folder.
    """

    def __init__(self, root: Path, project: str, namespace: str = "local"):
        self.root = root.absolute()
        self.project = project
        self.namespace = namespace

    def repository(self, kind: type[Artifact]) -> str:
        return f"{self.namespace}/{self.project}-{kind.suffix}"

    def find(self, kind: type[A], key: str) -> A | None:
        """The artifact that `key` names, or None when nothing whole stands there."""
        folder = self._folder(kind, self.repository(kind))
        try:
            revision = (folder / "refs" / key).read_text()
            record = json.loads((folder / "snapshots" / revision / RECORD).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return kind(repository=self.repository(kind), revision=revision, key=key, **record["counts"])

    def tagged(self, kind: type[A], tag: str) -> A | None:
        """The artifact to which a tag points, or None."""
        path = self._folder(kind, self.repository(kind)) / "refs" / tag
        return self.at(kind, path.read_text()) if path.exists() else None

    def at(self, kind: type[A], revision: str) -> A:
        """The artifact of a revision. Raises Stop when it is gone."""
        repository = self.repository(kind)
        snapshot = self._folder(kind, repository) / "snapshots" / revision
        try:
            record = json.loads((snapshot / RECORD).read_text())
        except FileNotFoundError:
            raise Stop(
                f"{repository} at {revision[:12]} is not in the store {self.root}.", "Look at what became of it."
            ) from None
        return kind(repository=repository, revision=revision, key=record["key"], **record["counts"])

    def tags(self, kind: type[Artifact], prefix: str) -> dict[str, str]:
        """The tags that begin with `prefix`, by name, and the revision of each."""
        refs = self._folder(kind, self.repository(kind)) / "refs"
        return {path.name: path.read_text() for path in sorted(refs.glob(f"{prefix}*"))}

    def tag(self, artifact: Artifact, tag: str) -> None:
        """Points a tag to an artifact, in one step; a tag that exists moves."""
        self._point(artifact, tag)

    def _point(self, artifact: Artifact, tag: str) -> None:
        refs = self._folder(type(artifact), artifact.repository) / "refs"
        with _disk_errors(self.root):
            refs.mkdir(exist_ok=True)
            half = refs / f".{tag}.{uuid.uuid4().hex}"
            half.write_text(artifact.revision)
            os.replace(half, refs / tag)

    def untag(self, kind: type[Artifact], tag: str) -> None:
        (self._folder(kind, self.repository(kind)) / "refs" / tag).unlink()

    @contextmanager
    def locked(self, kind: type[Artifact]) -> Iterator[None]:
        """One process at a time, for what is looked at and then changed."""
        folder = self._folder(kind, self.repository(kind))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def alone(self, name: str, say: Callable[[str], None], wait: bool = True) -> Iterator[None]:
        """One process at a time makes what `name` names; another waits, and then finds it. A killed one lets go.

        Raises MadeElsewhere where `wait` is false and another one makes it.
        """
        folder = self.root / ".locks"
        with self._writable():
            folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise MadeElsewhere("Another run makes this very artifact.", "Wait for it to end.") from None
                say("Another run makes this very artifact; waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def fetch(self, artifact: Artifact) -> Path:
        """The artifact's files, read-only by agreement. Raises Stop when they are gone."""
        snapshot = self._snapshot(artifact)
        if not snapshot.is_dir():
            raise Stop(
                f"{artifact.repository} at {artifact.revision[:12]} is not in the store {self.root}.",
                "Run the recipe again: the stage that made it runs anew.",
            )
        return snapshot

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A folder beside the store's repositories; what was not published from it is removed."""
        folder = self.root / ".staging" / uuid.uuid4().hex
        with self._writable():
            folder.mkdir(parents=True)
        with _disk_errors(self.root):
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def publish(self, kind: type[A], key: str, staged: Path, counts: dict[str, Any], made_by: dict[str, Any]) -> A:
        """Publishes what stands in `staged`, whole or not at all; the ref is written last."""
        artifact = self._keep(kind, key, staged, counts, made_by)
        self._point(artifact, key)
        return artifact

    def _keep(self, kind: type[A], key: str, staged: Path, counts: dict[str, Any], made_by: dict[str, Any]) -> A:
        """Makes a snapshot of what stands in `staged`; nothing points to it yet."""
        counts = kind(repository="-", revision="-", key=key, **counts).model_dump(exclude=set(Artifact.model_fields))
        with _disk_errors(self.root):
            record = {"key": key, "counts": counts, "made_by": made_by, "files": hashes(staged)}
            text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
            (staged / RECORD).write_text(text)
            artifact = kind(repository=self.repository(kind), revision=revision_of(text.encode()), key=key, **counts)
            snapshot = self._snapshot(artifact)
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            if not snapshot.exists():  # the same content was published before: it is the same snapshot
                os.replace(staged, snapshot)
        return artifact

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Stop(
                f"The store {self.root} cannot be written: {error.strerror}.",
                "Make room or give yourself the right to write there, or choose another with --set store.path=….",
            ) from error

    def _snapshot(self, artifact: Artifact) -> Path:
        return self._folder(type(artifact), artifact.repository) / "snapshots" / artifact.revision

    def _folder(self, kind: type[Artifact], repository: str) -> Path:
        return self.root / f"{kind.repo_type}s" / repository


def revision_of(record: bytes) -> str:
    """An artifact's revision: 40 hex digits over its record, which holds the hash of every file."""
    return hashlib.sha256(record).hexdigest()[:40]


def digest(folder: Path, files: str = "*") -> str:
    """40 hex digits over the names and contents of all files below `folder` that `files` fits, links followed."""
    lines = (f"{name}\0{each}\n" for name, each in hashes(folder, files).items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:40]


def hashes(folder: Path, files: str = "*") -> dict[str, str]:
    """The SHA-256 of every file below `folder` that `files` fits, by its path."""
    found = {}
    for file in sorted(path for path in folder.rglob(files) if path.is_file()):
        with file.open("rb") as content:
            found[file.relative_to(folder).as_posix()] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


@contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """Says in words what a full or read-only disk did."""
    import errno

    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            raise
        raise Stop(
            f"Writing an artifact under {root} failed: {error.strerror}. Nothing half-written was published.",
            "Make room there (or choose another folder with --set store.path=…) and run again; "
            "finished stages and episodes are kept.",
        ) from error
