"""The files of a store: hashes, changes, locks, and the errors of a full or read-only disk.

In: a folder, or a file of it. Out: hashes, the names of damaged files, or `Stop`.
"""

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from apprentice.tasks.artifacts.provenance import CARD, RECORD, BadRecord, read_record
from apprentice.tasks.files.lease import held
from apprentice.tasks.files.owners import denied
from apprentice.tasks.reporting.errors import Stop


def damage(snapshot: Path, revision: str) -> list[str]:
    """The files of a snapshot that are not what its record says, or of which it says nothing.

    A card may be edited. `revision`: what the record itself must come to.
    """
    try:
        record = read_record(snapshot)
    except (FileNotFoundError, BadRecord):
        return [RECORD]
    damaged = [RECORD] if record.kind and record.revision != revision else []
    links = (path for path in snapshot.rglob("*") if path.is_symlink())  # a download holds the files themselves
    damaged += [path.relative_to(snapshot).as_posix() for path in links]
    damaged += [name for name in _files(snapshot) if name not in {*record.files, RECORD, CARD}]  # nobody hashed it
    for name, expected in record.files.items():
        path = snapshot / name
        if name not in damaged and not (path.is_file() and (name == CARD or known_sha256_of(path) == expected)):
            damaged.append(name)
    return damaged


def digest(folder: Path, files: str = "*") -> str:
    """40 hex digits over the names and contents of all files below `folder` that `files` fits, links followed."""
    return digest_of(hashes(folder, files))


def digest_of(files: dict[str, str]) -> str:
    """40 hex digits over files' names and their SHA-256, in this order."""
    lines = (f"{name}\0{each}\n" for name, each in files.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:40]


def hashes(folder: Path, files: str = "*") -> dict[str, str]:
    """The SHA-256 of every file below `folder` that `files` fits, by its path."""
    found = sorted(path for path in folder.rglob(files) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in found}


def _files(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


def sha256_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def known_sha256_of(file: Path) -> str:
    """Like `sha256_of`; a file that this process has read, and that is unchanged since, is not read again."""
    now = file.stat()
    return _sha256_of(file, now.st_ino, now.st_size, now.st_mtime_ns)


@cache
def _sha256_of(file: Path, *_state: int) -> str:
    return sha256_of(file)


@contextmanager
def flock(path: Path) -> Iterator[None]:
    """One process at a time; a killed one lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path):
        yield


@contextmanager
def writable(root: Path) -> Iterator[None]:
    """Raises Stop where a store's folder cannot be written at all."""
    try:
        yield
    except OSError as error:
        raise denied(error) or Stop(
            f"The store {root} cannot be written: {error.strerror}.",
            "Make room or give yourself the right to write there, or choose another with --set store.path=….",
        ) from error


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (stop := denied(error)) is not None:
            raise stop from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            raise
        raise Stop(
            f"Writing an artifact under {root} failed: {error.strerror}. Nothing half-written was published.",
            "Make room there (or choose another folder with --set store.path=…) and run again; "
            "finished stages and episodes are kept.",
        ) from error
