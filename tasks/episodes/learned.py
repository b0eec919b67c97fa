"""The record of what a checkpoint was trained on: stage, seed and question of every episode.

In: the questions of a training, and its initial checkpoint. Out: learned.jsonl, for contamination checks and lineage.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LEARNED = "learned.jsonl"


def write_learned(out: Path, stage: str, asked: Iterable[tuple[int, str]], before: Path | None = None) -> None:
    """Writes learned.jsonl: the rows of the initial checkpoint `before`, then these seeds and questions of `stage`."""
    with (out / LEARNED).open("w") as file:
        if before is not None:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in read_learned(before))
        for seed, question in asked:
            file.write(json.dumps({"stage": stage, "seed": seed, "question": question}, ensure_ascii=False) + "\n")


class TrainedQuestions:
    """The questions that a training has used so far, by seed, in a file that survives an interruption."""

    def __init__(self, path: Path):
        self._path = path
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        self._questions: dict[int, str] = dict(map(json.loads, whole))
        path.write_bytes(b"".join(line + b"\n" for line in whole))  # drops an incomplete last line

    def note(self, asked: Iterable[tuple[int, str]]) -> None:
        new = {seed: text for seed, text in asked if seed not in self._questions}
        self._questions |= new
        with self._path.open("a") as file:
            file.writelines(f"{json.dumps(pair, ensure_ascii=False)}\n" for pair in new.items())

    def items(self) -> Iterable[tuple[int, str]]:
        return self._questions.items()


def read_learned(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows of a checkpoint: stage, seed, question; empty for a student that was not trained here."""
    path = checkpoint / LEARNED
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
