"""The rows of a `Questions` artifact: purpose, seed, question, whether it is used.

In: rows, or an artifact's folder. Out: questions.jsonl, or rows; `same_text` says when two questions are one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def same_text(question: str) -> str:
    """Equal for questions that differ only in case and in white space: who has seen one has seen the other."""
    return " ".join(question.casefold().split())


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A line a row: purpose, seed, question, used."""
    with (out / "questions.jsonl").open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    with (folder / "questions.jsonl").open() as file:
        return [row for line in file if (row := json.loads(line))["purpose"] == purpose]
