"""Reads and writes the rows of a `Questions` artifact: purpose, seed, question, whether it is used.

In: rows, or an artifact's folder. Out: questions.jsonl, or rows. `same_text` defines when two questions are equal.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def same_text(question: str) -> str:
    """A normalized question: questions that differ only in case and white space count as the same."""
    return " ".join(question.casefold().split())


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one line per row: purpose, seed, question, used."""
    with (out / "questions.jsonl").open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    with (folder / "questions.jsonl").open() as file:
        return [row for line in file if (row := json.loads(line))["purpose"] == purpose]
