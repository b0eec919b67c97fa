"""Where episodes are kept while a collection or an evaluation runs: one line each, appended as they finish.

In: records, each with a number (its seed, its place). Out: the numbers that are done, and the whole in their order.
The file lies in the stage's scratch folder, whose name is the key, so only the very same work finds it again. Beside it
stands what it was begun with; work that would go on under something else is refused.
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
    """A record that is written as a line."""

    def line(self) -> bytes: ...


class Journal:
    """An open journal. Memory: 16 bytes an episode.

    Args:
        numbered_by: The field of a record that numbers it.
    """

    def __init__(self, folder: Path, numbered_by: str = "seed"):
        self._path = folder / "episodes.jsonl"
        self._file = self._path.open("a+b")
        self._numbered_by = numbered_by
        self._numbers = array("q")
        self._places = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def done(self) -> set[int]:
        """The numbers of the episodes that are done."""
        return set(self._numbers)

    def append(self, record: Line) -> None:
        """Writes one episode; from then on a killed process does not lose it."""
        place = self._file.tell()
        self._file.write(record.line())
        self._file.flush()
        self._numbers.append(getattr(record, self._numbered_by))
        self._places.append(place)

    def in_order(self) -> Iterator[bytes]:
        """The lines by number, one at a time."""
        with self._path.open("rb") as file:
            for position in sorted(range(len(self)), key=self._numbers.__getitem__):
                file.seek(self._places[position])
                yield file.readline()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop(
                "Another run plays the very same episodes.", "Wait for it to end: its result serves both."
            ) from None

    def _read(self) -> None:
        """Notes number and place of every whole line; a torn last one is cut off."""
        self._file.seek(0)
        end = 0
        while (line := self._file.readline()).endswith(b"\n"):
            self._numbers.append(json.loads(line)[self._numbered_by])
            self._places.append(end)
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)


@contextmanager
def journal(folder: Path, begun_with: dict[str, Any], numbered_by: str = "seed") -> Iterator[Journal]:
    """The journal in `folder`, for this process alone. Raises Stop when another has it, or it was begun otherwise."""
    opened = Journal(folder, numbered_by)
    try:
        opened._lock()
        check_begun_with(folder / "settings.json", begun_with)
        opened._read()
        yield opened
    finally:
        opened._file.close()


def check_begun_with(path: Path, now: dict[str, Any]) -> None:
    """Notes what a piece of work is begun with. Raises Stop, with the difference, when it was begun otherwise."""
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
            f"These episodes were begun under other settings:\n{difference}",
            f"Go back to those, or remove {path.parent} to begin anew.",
        )


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(name), now.get(name), f"{path}.{name}".lstrip("."))
    elif then != now:
        yield f"{path}: {json.dumps(then, ensure_ascii=False)} → {json.dumps(now, ensure_ascii=False)}"
