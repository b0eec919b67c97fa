"""How a grid is shown to the player.

In: a grid of nine rows, 0 where a cell is empty. Out: text.
"""

from .solving import Grid, empty_cells, possible


def drawn(grid: Grid) -> str:
    """The grid as the player sees it: rows and columns numbered, a dot for an empty cell."""
    rows = [f"{number} {line}" for number, line in enumerate(lines(grid).split("\n"), start=1)]
    return "\n".join(["  123456789", *rows])


def lines(grid: Grid) -> str:
    """Nine lines of digits, a dot for an empty cell."""
    return "\n".join("".join(str(digit or ".") for digit in row) for row in grid)


def penciled(grid: Grid) -> list[str]:
    """The digits that row, column and box leave to each empty cell, a text a cell, as players pencil them in."""
    return [
        f"row {row + 1}, column {column + 1}: {' '.join(map(str, sorted(possible(grid, row, column))))}"
        for row, column in empty_cells(grid)
    ]


def placed(row: int, column: int, digit: int, left: int, empty: int, new_marks: list[str]) -> str:
    """What the player is told of a digit that stands."""
    now = f" Now {'; '.join(new_marks)}." if new_marks else ""
    return f"Placed {digit} at ({row}, {column}). {left} of {empty} left.{now}"


def refused(why: str, left: int, empty: int, mistakes_left: int) -> str:
    """What the player is told of a move that does not."""
    return f"Refused: {why} {left} of {empty} left. Mistakes left: {mistakes_left}."
