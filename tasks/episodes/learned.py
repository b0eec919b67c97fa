"""The record of what a checkpoint was trained on: stage, seed and question of every episode.

In: the questions of a training, and its initial checkpoint. Out: learned.jsonl, for contamination checks and lineage.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.json_lines import JsonLines, as_line, read_rows

LEARNED = "learned.jsonl"


def write_learned(out: Path, stage: str, asked: Iterable[tuple[int, str]], before: Path | None = None) -> None:
    """Writes learned.jsonl: the rows of the initial checkpoint `before`, then these seeds and questions of `stage`."""
    rows = read_learned(before) if before else []
    rows += [{"stage": stage, "seed": seed, "question": question} for seed, question in asked]
    (out / LEARNED).write_bytes(b"".join(map(as_line, rows)))


class TrainedQuestions:
    """The questions that a training has used so far, by seed, in a file that survives an interruption."""

    def __init__(self, path: Path):
        self._lines = JsonLines(path)
        self._questions: dict[int, str] = dict(map(json.loads, self._lines))

    def note(self, asked: Iterable[tuple[int, str]]) -> None:
        new = {seed: text for seed, text in asked if seed not in self._questions}
        self._questions |= new
        self._lines.append(*map(as_line, new.items()))

    def items(self) -> Iterable[tuple[int, str]]:
        return self._questions.items()


def read_learned(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint: stage, seed, question; empty for a student that was not trained here."""
    path = checkpoint / LEARNED
    return read_rows(path) if path.exists() else []
