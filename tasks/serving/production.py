"""How the questions of a log differ from those of a recipe's windows: whether the environment still fits.

In: the texts that clients asked, the texts of the windows. Out: rows for a table.
"""

from collections.abc import Iterable
from statistics import median, quantiles
from typing import Any

from apprentice.tasks.episodes.texts import same_text


def questions_in(rows: Iterable[Any]) -> list[str]:
    """The first text of a user in each row of a log."""
    texts = []
    for row in rows:
        messages = row.get("messages") if isinstance(row, dict) else None
        users = [each for each in messages or [] if isinstance(each, dict) and each.get("role") == "user"]
        if users and isinstance(text := users[0].get("content"), str):
            texts.append(text)
    return texts


def production_rows(requests: list[str], windows: list[str]) -> list[dict[str, str]]:
    """A row a property, with its value in the log and in the windows. Both have texts."""
    known = set(map(same_text, windows))
    inside = sum(same_text(each) in known for each in requests)
    rows = [
        ("questions", f"{len(requests):,}", f"{len(windows):,}"),
        ("different ones", *(f"{len(set(map(same_text, each))):,}" for each in (requests, windows))),
        ("characters, median", *(f"{median(map(len, each)):,.0f}" for each in (requests, windows))),
        ("characters, 95% have at most", *(f"{_p95(each):,.0f}" for each in (requests, windows))),
        ("words, median", *(f"{median(len(text.split()) for text in each):,.0f}" for each in (requests, windows))),
        ("not in the windows", f"{1 - inside / len(requests):.0%}", "–"),
    ]
    return [{"": name, "the log": log, "the recipe's windows": own} for name, log, own in rows]


def _p95(texts: list[str]) -> float:
    lengths = [len(each) for each in texts]
    return quantiles(lengths, n=20, method="inclusive")[-1] if len(lengths) > 1 else lengths[0]
