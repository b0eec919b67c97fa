"""Files of episodes behind a table: rows in the order of the lines, transcripts by row, a search. Memory stays flat."""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from threading import Lock
from typing import Any

from apprentice.flows.pages.episodes import EpisodeSource, Reader, texts_of, transcript

FIRST, NEXT = 500, 5000
"""Rows of the first chunk, which is on the screen at once, and of those after it."""


class EpisodeFiles:
    """Rows are numbered over all sources, one source after the other.

    Args:
        episodes: The number of lines of each source.
    """

    def __init__(self, sources: list[EpisodeSource], episodes: list[int]):
        self._sources, self._reader = sources, Reader(sources)
        self._ends = [*accumulate(episodes)]
        self._offsets = [array("Q", [0]) for _ in sources]
        self._reading = Lock()

    def rows(self, begin: int) -> dict[str, Any]:
        """The rows from `begin` on, as many as a chunk has, the words that they name by number, and the total."""
        with self._reading:
            size = NEXT if begin else FIRST
            rows = [self._reader.row(*each) for each in islice(self._lines(begin), size)]
            return self._reader.head() | {"rows": rows, "total": self._ends[-1], "left_out": 0}

    def transcripts(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """The transcripts of rows. Raises IndexError for a row that was not read yet."""
        return [transcript(self._line(row)) for row in rows]

    def search(self, text: str) -> list[int]:
        """The rows of which a message, a call or the environment's answer contains the text, in whatever case."""
        wanted = text.lower()
        raw = json.dumps(wanted)[1:-1].encode() if wanted.isascii() and wanted.isalnum() else b""
        found = []
        with self._reading:
            for row, (_, _, line) in enumerate(self._lines(0)):
                if raw in line.lower() and any(wanted in each.lower() for each in texts_of(transcript(line))):
                    found.append(row)
        return found

    def _lines(self, begin: int) -> Iterator[tuple[int, int, bytes]]:
        """Source, number and bytes of each line from row `begin` on; notes where each line begins."""
        for source, of in enumerate(self._sources):
            start = self._ends[source - 1] if source else 0
            number, offsets = max(begin - start, 0), self._offsets[source]
            if start + number >= self._ends[source]:
                continue
            with of.path.open("rb") as file:
                known = min(number, len(offsets) - 1)
                file.seek(offsets[known])
                for place, line in enumerate(file, known):
                    if place + 1 == len(offsets):
                        offsets.append(offsets[place] + len(line))
                    if place >= number:
                        yield source, place, line

    def _line(self, row: int) -> bytes:
        source = bisect_right(self._ends, row)
        number = row - (self._ends[source - 1] if source else 0)
        offsets = self._offsets[source]
        with self._sources[source].path.open("rb") as file:
            file.seek(offsets[number])
            return file.read(offsets[number + 1] - offsets[number])
