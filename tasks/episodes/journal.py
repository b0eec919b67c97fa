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

from apprentice.tasks.episodes.json_lines import JsonLines
from apprentice.tasks.reporting.errors import Stop


class Line(Protocol):
    """A record that is written as a line."""

    def line(self) -> bytes: ...


class Journal:
    """An open journal. Memory: 16 bytes an episode.

    Args:
        numbered_by: The field of a record that numbers it.
    """

    def __init__(self, path: Path, numbered_by: str):
        self._lines = JsonLines(path)
        self._numbered_by = numbered_by
        self._numbers = array("q")
        self._places = array("q")
        self._end = 0
        for line in self._lines:
            self._note(json.loads(line)[numbered_by], line)

    def __len__(self) -> int:
        return len(self._numbers)

    def done(self) -> set[int]:
        """The numbers of the episodes that are done."""
        return set(self._numbers)

    def append(self, record: Line) -> None:
        """Writes one episode; from then on a killed process does not lose it."""
        line = record.line()
        self._lines.append(line)
        self._note(getattr(record, self._numbered_by), line)

    def in_order(self) -> Iterator[bytes]:
        """The lines by number, one at a time."""
        with self._lines.path.open("rb") as file:
            for position in sorted(range(len(self)), key=self._numbers.__getitem__):
                file.seek(self._places[position])
                yield file.readline()

    def _note(self, number: int, line: bytes) -> None:
        self._numbers.append(number)
        self._places.append(self._end)
        self._end += len(line)


@contextmanager
def journal(folder: Path, begun_with: dict[str, Any], numbered_by: str = "seed") -> Iterator[Journal]:
    """The journal in `folder`, for this process alone. Raises Stop when another has it, or it was begun otherwise."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop(
                "Another run plays the very same episodes.", "Wait for it to end: its result serves both."
            ) from None
        check_begun_with(folder / "settings.json", begun_with)
        yield Journal(folder / "episodes.jsonl", numbered_by)


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
