"""Text that is safe to show on terminals, cards and pages.

In: any text. Out: the same with invisible characters escaped; as Markdown table, code or code block.
"""

import re


def visible(text: str) -> str:
    """The text with non-printable characters escaped, such as \\x07 or \\u200b; line ends are kept."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The text on one line: white space becomes single spaces."""
    return visible(" ".join(text.split()))


def markdown_table(rows: list[dict[str, str]]) -> str:
    """A table with the first row's names as columns, without a final newline; an empty string without rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(cell(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def points(share: float) -> str:
    return f"{100 * share:+.1f} pp"


def cell(value: str) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Text as inline code: no markup, invisible characters escaped, line ends as spaces."""
    text = visible(" ".join(text.splitlines()))
    fence = "`" * (_longest_run(text) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{padding}{text}{padding}{fence}" if text else "(nothing)"


def fenced(text: str, language: str = "text") -> str:
    """Text as a code block, with invisible characters escaped, without a final newline."""
    text = visible(text)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
