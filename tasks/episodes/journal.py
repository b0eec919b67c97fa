"""A journal: one line per finished episode of a running collection or evaluation, whose process may be killed.

In: episodes, and the settings that they are played under. Out: the lines in the order of their numbers.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.record import EvaluatedEpisode, Record
from apprentice.tasks.files.json_lines import JsonLines
from apprentice.tasks.files.lease import held
from apprentice.tasks.reporting.errors import Stop


class Journal:
    """An open journal. Uses 16 bytes of memory per episode.

    Args:
        numbered_by: The record field with its number.
        say: Called with a warning, where the file is not as one process writes it.
        check: Called before each change; raises where another process may change the file.
    """

    def __init__(
        self, path: Path, numbered_by: str, say: Callable[[str], None], check: Callable[[], None] = lambda: None
    ):
        self._lines = JsonLines(path)
        self._say = say
        self._numbered_by = numbered_by
        self.check = check
        self._read()

    def _read(self) -> None:
        """Of an episode that two processes have played the first counts; what cannot be read is played again."""
        self._numbers = array("q")
        self._offsets = array("q")
        self._end = 0
        known: set[int | None] = {None}
        twice = unreadable = 0
        for line in self._lines:
            number = self._number(line)
            twice += number is not None and number in known
            unreadable += number is None
            self._index(None if number in known else number, line)
            known.add(number)
        if twice:
            self._say(
                f"Episodes that are played twice in {self._lines.path}: {twice:,}. Two processes wrote it at the same "
                "time; the first of each counts."
            )
        if unreadable:
            self._say(f"Unreadable lines in {self._lines.path}: {unreadable:,}. Their episodes are played again.")

    def _number(self, line: bytes) -> int | None:
        try:
            number = json.loads(line)[self._numbered_by]
        except (ValueError, TypeError, KeyError):
            return None
        return number if isinstance(number, int) else None

    def __len__(self) -> int:
        return len(self._numbers)

    def done(self) -> set[int]:
        """The numbers of the finished episodes."""
        return set(self._numbers)

    def append(self, record: Record | EvaluatedEpisode) -> None:
        """Writes and flushes one episode, so that a killed process does not lose it."""
        line = record.line()
        self.check()
        self._lines.append(line)
        self._index(getattr(record, self._numbered_by), line)

    def in_order(self) -> Iterator[bytes]:
        """The lines in the order of their numbers, one at a time."""
        with self._lines.path.open("rb") as file:
            for position in sorted(range(len(self)), key=self._numbers.__getitem__):
                file.seek(self._offsets[position])
                yield file.readline()

    def forget(self, numbers: set[int]) -> None:
        """Removes episodes, so that they are played again."""
        self.check()
        half = self._lines.path.with_suffix(".half")
        with half.open("wb") as file:
            file.writelines(line for line in self._lines if self._number(line) not in {None, *numbers})
        half.replace(self._lines.path)
        self._read()

    def _index(self, number: int | None, line: bytes) -> None:
        if number is not None:
            self._numbers.append(number)
            self._offsets.append(self._end)
        self._end += len(line)


@contextmanager
def journal(
    folder: Path, initial_settings: dict[str, Any], say: Callable[[str], None], numbered_by: str = "seed"
) -> Iterator[Journal]:
    """Opens and locks the journal in `folder`. Raises Stop when it is locked or was started under other settings."""

    def busy() -> None:
        raise Stop("Another run is playing the same episodes.", "Wait for it to end; this run then uses its result.")

    with held(folder / "lock", busy, say) as lease:
        check_initial_settings(folder / "settings.json", initial_settings)
        yield Journal(folder / "episodes.jsonl", numbered_by, say, lease.check)


def check_initial_settings(path: Path, now: dict[str, Any]) -> None:
    """Saves the settings at the first call. Raises Stop, with the difference, when the saved settings differ."""
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
    if not path.exists():
        half = path.with_suffix(".half")
        half.write_text(json.dumps({"digest": digest, "settings": now}, indent=2, ensure_ascii=False) + "\n")
        half.replace(path)
        return
    initial = json.loads(path.read_text())
    if initial["digest"] != digest:
        difference = "\n".join(f"  {line}" for line in _differences(initial["settings"], now))
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
