"""What a checkpoint was trained on: stage, seed and question of every episode.

In: what a training used, and the checkpoint before it. Out: learned.jsonl, which contamination and lineage read.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.json_lines import JsonLines, as_line, read_rows

LEARNED = "learned.jsonl"


def write_learned(out: Path, stage: str, asked: Iterable[tuple[int, str]], before: Path | None = None) -> None:
    """Notes in a checkpoint that `stage` trained on these seeds and questions, after what `before` notes already."""
    rows = read_learned(before) if before else []
    rows += [{"stage": stage, "seed": seed, "question": question} for seed, question in asked]
    (out / LEARNED).write_bytes(b"".join(map(as_line, rows)))


class TrainedQuestions:
    """The questions that a training asked so far, by seed, kept in a file: one that is resumed still knows them."""

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
    """What a checkpoint learned from: stage, seed, question; nothing for a student that was not trained here."""
    path = checkpoint / LEARNED
    return read_rows(path) if path.exists() else []
