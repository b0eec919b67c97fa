"""Reads and writes the rows of a `Questions` artifact: purpose, seed, question, whether it is used.

In: rows, or an artifact's folder. Out: questions.jsonl, or rows. `same_text` defines when two questions are equal.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.json_lines import as_line, read_rows


def same_text(question: str) -> str:
    """A normalized question: questions that differ only in case and white space count as the same."""
    return " ".join(question.casefold().split())


def write_questions(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one line per row: purpose, seed, question, used."""
    (out / "questions.jsonl").write_bytes(b"".join(map(as_line, rows)))


def read_questions(folder: Path, purpose: str) -> list[dict[str, Any]]:
    """The rows of one purpose: seed, question, and whether it is used."""
    return [row for row in read_rows(folder / "questions.jsonl") if row["purpose"] == purpose]
