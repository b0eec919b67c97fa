"""The journal of a running collection or evaluation: one line per episode, appended as each finishes.

In: records, each with a number (seed or place). Out: the finished numbers, and all lines in order.
The file is in the stage's scratch folder, which is named by the key, next to the settings that it was started with;
resuming under other settings raises Stop.
"""

import fcntl
import hashlib
import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from apprentice.tasks.reporting.errors import Stop


class Line(Protocol):
    """A record that serializes to one line."""

    def line(self) -> bytes: ...


class Journal:
    """An open journal. Uses 16 bytes of memory per episode.

    Args:
        numbered_by: The record field with its number.
    """

    def __init__(self, folder: Path, numbered_by: str = "seed"):
        self._path = folder / "episodes.jsonl"
        self._file = self._path.open("a+b")
        self._numbered_by = numbered_by
        self._numbers = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def done(self) -> set[int]:
        """The numbers of the finished episodes."""
        return set(self._numbers)

    def append(self, record: Line) -> None:
        """Writes and flushes one episode, so that a killed process does not lose it."""
        offset = self._file.tell()
        self._file.write(record.line())
        self._file.flush()
        self._numbers.append(getattr(record, self._numbered_by))
        self._offsets.append(offset)

    def in_order(self) -> Iterator[bytes]:
        """The lines in the order of their numbers, one at a time."""
        with self._path.open("rb") as file:
            for position in sorted(range(len(self)), key=self._numbers.__getitem__):
                file.seek(self._offsets[position])
                yield file.readline()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop(
                "Another run is playing the same episodes.", "Wait for it to end; this run then uses its result."
            ) from None

    def _read(self) -> None:
        """Indexes every complete line; truncates an incomplete last one."""
        self._file.seek(0)
        end = 0
        while (line := self._file.readline()).endswith(b"\n"):
            self._numbers.append(json.loads(line)[self._numbered_by])
            self._offsets.append(end)
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)


@contextmanager
def journal(folder: Path, begun_with: dict[str, Any], numbered_by: str = "seed") -> Iterator[Journal]:
    """Opens and locks the journal in `folder`. Raises Stop when it is locked or was started under other settings."""
    opened = Journal(folder, numbered_by)
    try:
        opened._lock()
        check_begun_with(folder / "settings.json", begun_with)
        opened._read()
        yield opened
    finally:
        opened._file.close()


def check_begun_with(path: Path, now: dict[str, Any]) -> None:
    """Saves the settings at the first call. Raises Stop, with the difference, when the saved settings differ."""
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
    if not path.exists():
        half = path.with_suffix(".half")
        half.write_text(json.dumps({"digest": digest, "settings": now}, indent=2, ensure_ascii=False) + "\n")
        half.replace(path)
        return
    begun = json.loads(path.read_text())
    if begun["digest"] != digest:
        difference = "\n".join(f"  {line}" for line in _differences(begun["settings"], now))
        raise Stop(
            f"These episodes were started under other settings:\n{difference}",
            f"Restore those settings, or remove {path.parent} to start over.",
        )


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(name), now.get(name), f"{path}.{name}".lstrip("."))
    elif then != now:
        yield f"{path}: {json.dumps(then, ensure_ascii=False)} → {json.dumps(now, ensure_ascii=False)}"
