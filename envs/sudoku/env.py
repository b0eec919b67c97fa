"""Sudoku as an environment: read a grid, fill its empty cells one at a time.

In: how many cells are given, and how many mistakes are allowed. Out: the grid of a seed, and the share that was solved.
Speaks the wire of OpenEnv's TextArena environment (step: message, such as "[5 3 7]"), and plays on servers of that
environment as well as on ours, by the rules that such a server has.

Its scripted teacher solves the grid that it sees and fills it from its end: a small student finds what stands nearest
first, and that is so however many cells there are. It insists on its mistake: a digit that was refused and then
corrected would still solve the puzzle, and the reward filter would have nothing to do.
"""

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment, whole_number
from apprentice.envs.policy import digest, errs, question_in
from apprentice.envs.sudoku.grid import Grid, drawn, empty_cells, lines, penciled, placed, refused, solutions
from apprentice.envs.textarena import Transcript, published_state, refusal_in
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.session import Refused

CLUES = {"very-easy": 75, "easy": 70, "normal": 60, "medium": 40, "hard": 20}
"""TextArena's own difficulties."""
PUBLISHED = "rules: textarena, and the difficulty that the server was started with"
"""The settings under which a server of the published environment can be played: what it is asked for it ignores."""


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
    rules: Literal["apprentice", "textarena"] = "apprentice"
    """`textarena`, as the published server has it: TextArena's own puzzle under a seed, with a difficulty in place of
    clues, and the second refused move in a row ends the game. Sometimes more cells are given."""

    @property
    def given(self) -> int:
        """Cells that are given, at least."""
        return CLUES[self.difficulty] if self.clues is None else self.clues

    @property
    def wire(self) -> dict[str, Any]:
        """What a reset sends besides the seed."""
        if self.rules == "textarena":
            return {"clues": self.given, "rules": self.rules}
        most = self.given if self.most_clues is None else self.most_clues
        own = {"most_clues": most, "marks": self.marks, "mistakes": self.mistakes}
        return {"clues": self.given, **own, "rules": self.rules}

    @model_validator(mode="after")
    def _span_is_one(self) -> "Settings":
        if self.most_clues is not None and self.most_clues < self.given:
            raise ValueError(f"most_clues ({self.most_clues}) is less than the clues ({self.given})")
        if self.rules == "textarena" and (own := {"clues", "most_clues", "mistakes"} & self.model_fields_set):
            raise ValueError(f"{', '.join(sorted(own))}: not by TextArena's rules, which have a difficulty only")
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
    _transcript: Transcript | None = None
    _grid: Grid
    _empty = 0

    @property
    def max_turns(self) -> int:
        """One for each empty cell and mistake; by TextArena's rules one mistake before each cell is free."""
        empty = 81 - self.settings.given
        return empty + self.settings.mistakes if self.settings.rules == "apprentice" else 2 * empty

    @property
    def instructions(self) -> str:
        allowed = self.settings.mistakes
        end = f"mistake number {allowed + 1} ends the game" if allowed else "the first mistake ends the game"
        if self.settings.rules == "textarena":
            end = "the second mistake in a row ends the game"
        marks = " Below it stands what row, column and box leave to each empty cell." if self.settings.marks else ""
        return (
            f"You play Sudoku. The grid has nine rows and nine columns; a dot is an empty cell.{marks} Fill every "
            "empty cell with a digit so that no row, no column and no 3x3 box holds a digit twice. Call the tool "
            f"`place` for one cell at a time until none is left. A digit that is placed stays; {end}."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The grid that `seed` names."""
        reply = self.session.reset(seed=seed, **self.settings.wire)
        ours = reply.find(int, "info", "empty") is not None
        if self.settings.rules == "apprentice" and ours:
            return reply.read(str, "prompt")
        if self.settings.rules == "apprentice":
            raise Refused(
                f"this server is of the published TextArena environment, which plays only {PUBLISHED}: set these, or "
                "serve this project's Sudoku (apprentice env build sudoku makes a Space of it)"
            )
        if not ours:
            level = "" if self.settings.difficulty == "normal" else f"-{self.settings.difficulty}"
            published_state(self, f"Sudoku-v0{level}", PUBLISHED)
        self._transcript = Transcript(reply)
        self._grid = _grid_in(self._transcript.text)
        self._empty = len(empty_cells(self._grid))
        return "\n".join([drawn(self._grid), *self._marks()])

    def place(self, row: int, column: int, digit: int) -> str:
        """Write a digit into an empty cell.

        Args:
            row: The cell's row, 1 to 9 from the top.
            column: The cell's column, 1 to 9 from the left.
            digit: The digit, 1 to 9.

        Returns:
            Whether the digit was placed, or why not, and how many cells are left.
        """
        place = whole_number(row, "row", 1, 9), whole_number(column, "column", 1, 9), whole_number(digit, "digit", 1, 9)
        message = f"[{' '.join(map(str, place))}]"
        reply = self.session.step({"message": message})
        if self._transcript is not None:
            return self._read(reply, self._transcript.new(reply, message), *place)
        self.reward, self.done = reply.score, reply.done
        if not self.done:
            return reply.read(str, "messages", -1, "content")
        self.correct = reply.read(str, "info", "solution")
        return "OK."

    def _read(self, reply: Reply, new: str, row: int, column: int, digit: int) -> str:
        """What TextArena said of a move, in the words of our own rules."""
        if reply.done:
            self.reward, self.done, self.correct = reply.score, True, lines(solutions(self._grid, 1)[0])
            return "OK."
        before, stands = self._marks(), "\n[GAME] Board state:" in new
        if stands:
            self._grid = _grid_in(new)
        left = len(empty_cells(self._grid))
        self.reward = (self._empty - left) / self._empty
        if not stands:
            return refused(refusal_in(new), left, self._empty, mistakes_left=0)
        return placed(row, column, digit, left, self._empty, [each for each in self._marks() if each not in before])

    def _marks(self) -> list[str]:
        return penciled(self._grid) if self.settings.marks else []

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return {"empty cells": question.count(".")}


def _grid_in(text: str) -> Grid:
    """The last of the grids that TextArena has drawn in a text. Raises BadReply."""
    rows = [re.findall("[1-9.]", row) for row in re.findall(r"^R[1-9] ([1-9.| ]+)$", text, re.MULTILINE)[-9:]]
    if [len(row) for row in rows] != [9] * 9:
        raise BadReply("the reply shows no grid")
    return [[0 if digit == "." else int(digit) for digit in row] for row in rows]


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn; wrong on a fixed share of the puzzles, in one cell."""
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
