"""TextArena's Sudoku with a dice cup of its own: the puzzle of a seed, and whether a move is right.

In: seed, clues, moves. Out: the grid; a refusal in words, or the cell filled.
Why not TextArena's class as it is: it draws from the global random state, which all sessions of a server share; and it
ends the game at the second invalid move in a row, whatever the player was allowed: that is the rules `textarena`.
"""

import random
from typing import Any

from textarena.envs.Sudoku.env import SudokuEnv
from textarena.wrappers import ActionFormattingWrapper, LLMObservationWrapper

from .grid import Cell, Grid, empty_cells, solutions


class _Drawn(SudokuEnv):
    """A puzzle from a generator of its own."""

    _draw: random.Random

    def _fill_grid(self, grid: Grid) -> bool:
        empty = self._find_empty(grid)
        if empty is None:
            return True
        row, column = empty
        for digit in self._shuffled(list(range(1, 10))):
            if self.is_safe(grid, row, column, digit):
                grid[row][column] = digit
                if self._fill_grid(grid):
                    return True
                grid[row][column] = 0
        return False

    def _shuffled(self, items: list[Any]) -> list[Any]:
        return self._draw.sample(items, len(items))


class Puzzle(_Drawn):
    """The puzzle that `seed` names, and how far it is solved. Rows, columns and digits count from 1.

    Attributes:
        given: The grid at the start; 0 where a cell is empty, here and below.
        board: The grid as it stands.
        solution: The full one.
        empty: Cells to be filled, in all.
    """

    def __init__(self, seed: int, clues: int, most_clues: int):
        self._draw = random.Random(seed)
        super().__init__(clues=self._draw.randint(clues, most_clues))
        self._tried: dict[Cell, list[int]] = {}
        self.reset(num_players=1)  # without a seed: TextArena would set the global random state to it
        made: Any = self  # TextArena's own annotations say otherwise
        self.given: Grid = made.game_board
        self.solution: Grid = made.full_grid
        self.board: Grid = made.state.game_state["board"]
        self.empty = self.left

    @property
    def left(self) -> int:
        """Cells that are still empty."""
        return len(empty_cells(self.board))

    @property
    def share(self) -> float:
        """How much of what was empty is filled rightly."""
        return self._get_percentage_completion()

    def place(self, row: int, column: int, digit: int) -> None:
        """Fills a cell. Raises ValueError, with the reason, for a move that the rules or the solution refuse."""
        self._check_bounds(row, column, digit)
        cell = (row - 1, column - 1)
        tried = self._tried.setdefault(cell, [])
        reason = self._why_not(*cell, digit)
        if reason is None:
            self.step(f"[{row} {column} {digit}]")
            return
        known = f" Tried there: {', '.join(map(str, tried))}." if tried else ""
        if digit not in tried:
            tried.append(digit)
        raise ValueError(f"{reason}.{known}")

    def _check_bounds(self, row: int, column: int, digit: int) -> None:
        for what, value in (("row", row), ("column", column), ("digit", digit)):
            if not 1 <= value <= 9:
                raise ValueError(f"the {what} must be 1 to 9.")

    def _why_not(self, row: int, column: int, digit: int) -> str | None:
        if self.given[row][column]:
            return f"row {row + 1}, column {column + 1} is given"
        if self.board[row][column]:
            return f"row {row + 1}, column {column + 1} is filled"
        if digit in self.board[row]:
            return f"{digit} is in row {row + 1}"
        if digit in (each[column] for each in self.board):
            return f"{digit} is in column {column + 1}"
        if not self.is_safe(self.board, row, column, digit):
            return f"{digit} is in the box"
        return None if self._is_move_correct(row, column, digit) else f"{digit} leads to no solution"

    def _remove_cells(self, grid: Grid, clues: int) -> Grid:
        """Takes cells out until `clues` are left, or until no further one can go without a second solution."""
        puzzle, left = [row[:] for row in grid], 81
        for row, column in self._shuffled([(row, column) for row in range(9) for column in range(9)]):
            if left == clues:
                break
            puzzle[row][column] = 0
            if len(solutions(puzzle, 2)) == 1:
                left -= 1
            else:
                puzzle[row][column] = grid[row][column]
        return puzzle


class _Original(_Drawn):
    """TextArena's game as it is: under the same seed the same puzzle, with the same rules."""

    def __init__(self, seed: int, clues: int):
        self._draw = random.Random(seed)
        super().__init__(clues=clues)
        self.reset(num_players=1)

    def _shuffled(self, items: list[Any]) -> list[Any]:
        self._draw.shuffle(items)  # other draws than those of a sample
        return items

    def _remove_cells(self, grid: Grid, clues: int) -> Grid:
        """Tries 81 - `clues` cells, so that more are left where one could not go."""
        puzzle = [row[:] for row in grid]
        for row, column in self._shuffled([(row, column) for row in range(9) for column in range(9)])[: clues - 1 : -1]:
            puzzle[row][column] = 0
            if len(solutions(puzzle, 2)) != 1:
                puzzle[row][column] = grid[row][column]
        return puzzle


class OriginalGame:
    """TextArena's game behind the wrappers with which TextArena registers it and the published environment makes it."""

    def __init__(self, seed: int, clues: int):
        self._game = _Original(seed, clues)
        self._wrapped = ActionFormattingWrapper(LLMObservationWrapper(self._game))
        made: Any = self._game  # TextArena's own annotations say otherwise
        self.empty = len(empty_cells(made.game_board))
        self.solution: Grid = made.full_grid

    def step(self, move: str) -> bool:
        """Make a move. Returns whether the game is over."""
        return self._wrapped.step(move)[0]

    @property
    def transcript(self) -> str:
        """All that was said so far. To be read once after each turn, as TextArena keeps what was not yet read."""
        return self._wrapped.get_observation()[1]

    @property
    def turn(self) -> int:
        """Turns so far; a mistake that was forgiven is none."""
        return self._game.state.turn

    @property
    def reward(self) -> float:
        """The share of the empty cells that is filled, once the game is over."""
        return float((self._game.state.rewards or {}).get(0, 0.0))
