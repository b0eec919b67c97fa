"""Tables in Markdown, for cards and reports."""

import re

from apprentice.tasks.reporting.visible import visible


def markdown_table(rows: list[dict[str, str]]) -> str:
    """A table with a column for each name of the first row, without a final newline; empty for no rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(cell(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def points(share: float) -> str:
    return f"{100 * share:+.1f} pp"


def cell(value: str) -> str:
    """Text as a cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Text that is shown as it is, in a line; nothing in it is markup or invisible. Line ends become spaces."""
    text = visible(" ".join(text.splitlines()))
    fence = "`" * (_longest_run(text) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{padding}{text}{padding}{fence}" if text else "(nothing)"


def fenced(text: str, language: str = "text") -> str:
    """Text that is shown as it is, in a block of its own; what is invisible in it is written out."""
    text = visible(text)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    """Of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
