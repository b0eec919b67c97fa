"""Sudoku as an environment: read a grid, fill its empty cells one at a time.

In: how many cells are given, and how many mistakes are allowed. Out: the grid of a seed, and the share that was solved.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment, whole_number

CLUES = {"very-easy": 75, "easy": 70, "normal": 60, "medium": 40, "hard": 20}
"""TextArena's own difficulties."""


class Settings(EnvironmentSettings):
    """How hard the puzzles are."""

    difficulty: Literal["very-easy", "easy", "normal", "medium", "hard"] = "normal"
    """TextArena's: 75, 70, 60, 40 or 20 of the 81 cells are given. An episode has a turn for each of the others."""
    clues: int | None = Field(default=None, ge=17, le=80)
    """Cells that are given, in place of a difficulty; fewer than about 25 are not reached where that would leave a
    second solution, and to look for them takes some tenths of a second a puzzle."""
    most_clues: int | None = Field(default=None, ge=17, le=80)
    """Each puzzle gets as many clues as its seed draws, from those above to these: easy ones among harder ones."""
    marks: bool = False
    """Pencil marks: each empty cell is listed with the digits that its row, column and box leave, and a reply lists
    those that have changed. Much easier with many clues; costs a line an empty cell."""
    mistakes: int = Field(default=3, ge=0, le=100)
    """Refused moves after which the next one ends the episode; many let a player find the digits by trying."""

    @property
    def given(self) -> int:
        """Cells that are given, at least."""
        return CLUES[self.difficulty] if self.clues is None else self.clues

    @property
    def wire(self) -> dict[str, Any]:
        """What a reset sends besides the seed."""
        most = self.given if self.most_clues is None else self.most_clues
        return {"clues": self.given, "most_clues": most, "marks": self.marks, "mistakes": self.mistakes}

    @model_validator(mode="after")
    def _span_is_one(self) -> "Settings":
        if self.most_clues is not None and self.most_clues < self.given:
            raise ValueError(f"most_clues ({self.most_clues}) is less than the clues ({self.given})")
        return self


class Environment(ToolEnvironment):
    """One puzzle an episode, one call of `place` a cell.

    The reward grows with every right digit: who stops early, or runs out of turns, keeps what was earned.
    """

    Settings = Settings
    version = "1"
    extra = ("textarena", "textarena")
    phrases = (
        *(f"\n{row} " for row in range(2, 10)),
        *(mark + str(value) for mark in ("\nrow ", ", column ", ": ") for value in range(1, 10)),  # found by one look
        *("Placed ", " at (", "). ", " of ", " left.", "Refused: ", " is in ", "Mistakes left: "),
    )
    settings: Settings

    @property
    def max_turns(self) -> int:
        return 81 - self.settings.given + self.settings.mistakes

    @property
    def instructions(self) -> str:
        allowed = self.settings.mistakes
        end = f"mistake number {allowed + 1} ends the game" if allowed else "the first mistake ends the game"
        marks = " Below it stands what row, column and box leave to each empty cell." if self.settings.marks else ""
        return (
            f"You play Sudoku. The grid has nine rows and nine columns; a dot is an empty cell.{marks} Fill every "
            "empty cell with a digit so that no row, no column and no 3x3 box holds a digit twice. Call the tool "
            f"`place` for one cell at a time until none is left. A digit that is placed stays; {end}."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The grid that `seed` names."""
        return self._start(seed, **self.settings.wire).read(str, "prompt")

    def place(self, row: int, column: int, digit: int) -> str:
        """Write a digit into an empty cell.

        Args:
            row: The cell's row, 1 to 9 from the top.
            column: The cell's column, 1 to 9 from the left.
            digit: The digit, 1 to 9.

        Returns:
            Whether the digit was placed, or why not, and how many cells are left.
        """
        place = [whole_number(row, "row", 1, 9), whole_number(column, "column", 1, 9)]
        reply = self._act({"message": f"[{place[0]} {place[1]} {whole_number(digit, 'digit', 1, 9)}]"})
        self.reward, self.done = reply.score, reply.done
        if not self.done:
            return reply.read(str, "messages", -1, "content")
        self.correct = reply.read(str, "info", "solution")
        return "OK."

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        return {"empty cells": question.count(".")}
