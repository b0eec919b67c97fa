"""The questions of a run, and those that a checkpoint was trained on, as JSON lines.

questions.jsonl has purpose, seed, question, and whether it is used; learned.jsonl stage, seed and question of a
checkpoint's training episodes.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.tasks.files.json_lines import JsonLines, as_line, read_rows

LEARNED = "learned.jsonl"


def write_learned(out: Path, stage: str, questions: Iterable[tuple[int, str]], before: Path | None = None) -> None:
    """Writes learned.jsonl: the rows of the initial checkpoint `before`, then these seeds and questions of `stage`."""
    rows = read_learned(before) if before else []
    rows += [{"stage": stage, "seed": seed, "question": question} for seed, question in questions]
    (out / LEARNED).write_bytes(b"".join(map(as_line, rows)))


class TrainedQuestions:
    """The questions that a training has used so far, by seed, in a file that survives an interruption."""

    def __init__(self, path: Path):
        self._lines = JsonLines(path)
        self._questions: dict[int, str] = dict(map(json.loads, self._lines))

    def note(self, questions: Iterable[tuple[int, str]]) -> None:
        new = {seed: text for seed, text in questions if seed not in self._questions}
        self._questions |= new
        self._lines.append(*map(as_line, new.items()))

    def items(self) -> Iterable[tuple[int, str]]:
        return self._questions.items()


def read_learned(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint: stage, seed, question; empty for a student that was not trained here."""
    path = checkpoint / LEARNED
    return read_rows(path) if path.exists() else []


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one line per row: purpose, seed, question, used."""
    (out / "questions.jsonl").write_bytes(b"".join(map(as_line, rows)))


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    return [row for row in read_rows(folder / "questions.jsonl") if row["purpose"] == purpose]


def used_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose that are asked."""
    return [row for row in read_questions(folder, purpose) if row["used"]]
