"""The board of Catch, and the openings from which a player takes over.

In: the board's size and how many moves are left to the player. Out: the opening that a seed names.
Why: OpenSpiel's Catch has one start a column. Here the ball has fallen some rows before the player takes over, and the
paddle has moved meanwhile: hundreds of questions. The ball can be caught from each of them.
"""

import random
from functools import lru_cache
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

LONGEST = 40
"""Rows, and columns, of the largest board."""


class Board(BaseModel, frozen=True):
    """How large the board is, and how late the player takes over."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    rows: int = Field(default=14, ge=2, le=LONGEST)
    """Of the board; the paddle is in the last one."""
    columns: int = Field(default=20, ge=2, le=LONGEST)
    """Of the board. Questions grow with its square, and with the moves."""
    least_moves: int = Field(default=3, ge=1)
    """Moves that a question leaves the player, at least."""
    most_moves: int = Field(default=6, ge=1)
    """Moves that a question leaves the player, at most: rows - 1 is OpenSpiel's own start. Each is a turn."""

    @model_validator(mode="after")
    def _the_ball_falls_that_far(self) -> "Board":
        if self.least_moves > self.most_moves:
            raise ValueError(f"least_moves ({self.least_moves}) is more than most_moves ({self.most_moves})")
        if self.most_moves > self.rows - 1:
            raise ValueError(f"most_moves ({self.most_moves}) must be less than rows ({self.rows}): a row is a move")
        return self


class Opening(NamedTuple):
    """Where the player takes over; columns from 0."""

    moves: int
    ball: int
    paddle: int


def opening_of(seed: int, board: Board) -> Opening:
    """The opening that `seed` names, each equally likely."""
    return random.Random(seed).choice(openings(board))


@lru_cache(maxsize=64)
def openings(board: Board) -> tuple[Opening, ...]:
    """All of a board: those that the paddle can have come to, from the middle, and can still catch the ball from."""
    middle = board.columns // 2
    return tuple(
        Opening(moves, ball, paddle)
        for moves in range(board.least_moves, board.most_moves + 1)
        for ball in range(board.columns)
        for paddle in range(board.columns)
        if abs(paddle - middle) <= board.rows - 1 - moves and abs(paddle - ball) <= moves
    )
