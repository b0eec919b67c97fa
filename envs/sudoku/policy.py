"""A scripted teacher for Sudoku: solves the grid that it sees, fills it from its end, and errs by design.

In: the messages as the student would see them. Out: one call of `place`.
Why from the end: a small student finds what stands nearest first, and that is so however many cells there are.
Why it insists on its mistake: a digit that was refused and then corrected would still solve the puzzle, and the reward
filter would have nothing to do.
"""

import re
from typing import Any

from apprentice.envs.policy import digest, errs, question_in
from apprentice.envs.sudoku.server.solving import Grid, empty_cells, solutions


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn; wrong on a fixed share of the puzzles, in one cell."""
    question = question_in(messages)
    given = read(question)
    solved = solutions(given, 1)[0]
    cells, draw = empty_cells(given)[::-1], digest(question)
    errs_at = cells[draw[4] % len(cells)] if errs(question, error_rate) else None
    filled = sum(message["role"] == "tool" and message["content"].startswith("Placed") for message in messages)
    row, column = cell = cells[min(filled, len(cells) - 1)]
    digit = solved[row][column]
    if cell == errs_at:
        digit = (digit + draw[5] % 8) % 9 + 1  # any other one, always the same
    return "place", {"row": row + 1, "column": column + 1, "digit": digit}


def read(question: str) -> Grid:
    """The grid that the player was shown."""
    rows = re.findall(r"^[1-9] ([1-9.]{9})$", question, re.MULTILINE)
    return [[0 if digit == "." else int(digit) for digit in row] for row in rows]
