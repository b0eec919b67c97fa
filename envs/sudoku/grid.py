"""A grid of nine rows, 0 where a cell is empty: its solutions, and how it is shown to the player.

Why: TextArena's own count of solutions goes through the cells in order, which takes seconds with few clues; this one
takes the cell with the fewest digits left. How many solutions there are is the same.
"""

from collections.abc import Iterator
from itertools import islice

Grid = list[list[int]]
Cell = tuple[int, int]


def solutions(grid: Grid, limit: int) -> list[Grid]:
    """At most `limit` of the grid's solutions; none where it contradicts itself."""
    free = {cell: possible(grid, *cell) for cell in empty_cells(grid)}
    return list(islice(_search([row[:] for row in grid], free), limit))


def empty_cells(grid: Grid) -> list[Cell]:
    """In the order in which one reads."""
    return [(row, column) for row in range(9) for column in range(9) if grid[row][column] == 0]


def possible(grid: Grid, row: int, column: int) -> set[int]:
    """The digits that stand in none of the cell's row, column and box."""
    return set(range(1, 10)) - {grid[r][c] for r, c in _PEERS[row, column]}


_CELLS = [(row, column) for row in range(9) for column in range(9)]
_PEERS = {
    (row, column): [(r, c) for r, c in _CELLS if r == row or c == column or (r // 3, c // 3) == (row // 3, column // 3)]
    for row, column in _CELLS
}


def _search(grid: Grid, free: dict[Cell, set[int]]) -> Iterator[Grid]:
    if not free:
        yield [row[:] for row in grid]
        return
    cell = min(free, key=lambda each: len(free[each]))
    rest = {each: digits for each, digits in free.items() if each != cell}
    for digit in sorted(free[cell]):
        grid[cell[0]][cell[1]] = digit
        near = {each: rest[each] - {digit} for each in _PEERS[cell] if each in rest}
        yield from _search(grid, rest | near)
    grid[cell[0]][cell[1]] = 0


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
