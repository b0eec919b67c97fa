"""Sudoku as an OpenEnv environment, with the action and the observation of the published TextArena one.

A reset names its puzzle whole (seed, clues, rules, and by the rules `apprentice` most_clues, marks, mistakes). An
action is a move in TextArena's spelling, "[5 3 7]": row, column, digit.

By the rules `textarena`, which are those of a reset without the last three, it is the published environment: the same
puzzle under the same seed, and all that was said since the reset in each reply's one message. Read in
envs/textarena_env of github.com/huggingface/OpenEnv (385de5eb).

By the rules `apprentice` a reply holds what is new: what was placed, or what was refused and why, and how much is left.
The reward is the share of the empty cells that are filled rightly. The game ends when all are, or with one mistake more
than was allowed.
"""

import re
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

from .grid import drawn, lines, penciled, placed, refused
from .puzzle import OriginalGame, Puzzle

FEWEST_CLUES = 17
"""With fewer no grid has one solution only."""
MOST_CLUES = 80
MOST_MISTAKES = 100
MISTAKES = 3
GAMES = {75: "Sudoku-v0-very-easy", 70: "Sudoku-v0-easy", 60: "Sudoku-v0", 40: "Sudoku-v0-medium", 20: "Sudoku-v0-hard"}
"""TextArena's names of its difficulties; the prompt once a turn was made."""


class SudokuAction(Action):
    """A move, such as "[5 3 7]"; words around it are not read."""

    message: str


class SudokuMessage(BaseModel):
    """What the game says."""

    sender_id: int = -1
    content: str
    category: str = "MESSAGE"


class SudokuObservation(Observation):
    """The grid after a reset; what is new after a move."""

    prompt: str = ""
    messages: list[SudokuMessage] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=lambda: [0])
    info: dict[str, Any] = Field(default_factory=dict)


class SudokuEnvironment(Environment[SudokuAction, SudokuObservation, State]):
    """One puzzle an episode. Sessions share nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._puzzle: Puzzle | None = None
        self._original: OriginalGame | None = None
        self._game = ""
        self._marks = False
        self._mistakes_left = 0
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        clues: int = 60,
        most_clues: int | None = None,
        marks: bool = False,
        mistakes: int | None = None,
        rules: str = "",
        **_: Any,
    ) -> SudokuObservation:
        if not isinstance(seed, int):
            raise ValueError("a reset names its puzzle: send a seed, such as reset(seed=7); clues and rules may follow")
        own = most_clues is not None or mistakes is not None or marks
        rules = rules or ("apprentice" if own else "textarena")
        if rules not in ("textarena", "apprentice"):
            raise ValueError(f"unknown rules {rules!r}; known: textarena, apprentice")
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        if rules == "textarena":
            if own:
                raise ValueError("most_clues, marks and mistakes are of the rules apprentice")
            return self._reset_original(seed, clues)
        most_clues = clues if most_clues is None else most_clues
        mistakes = MISTAKES if mistakes is None else mistakes
        if not all(isinstance(each, int) for each in (clues, most_clues, mistakes)):
            raise ValueError("clues, most_clues and mistakes must be whole numbers")
        check(clues, most_clues, mistakes)
        self._puzzle, self._original, self._marks = Puzzle(seed, clues, most_clues), None, marks
        self._mistakes_left = mistakes
        question = drawn(self._puzzle.board) + "".join(f"\n{each}" for each in self._penciled())
        return SudokuObservation(prompt=question, info=self._progress(), done=False, reward=0.0)

    def _reset_original(self, seed: int, clues: int) -> SudokuObservation:
        if not isinstance(clues, int):
            raise ValueError(f"clues must be a whole number, not {clues!r}")
        check(clues, clues, 0)
        self._puzzle, self._original = None, OriginalGame(seed, clues)
        self._game = GAMES.get(clues, GAMES[60])
        told = self._original.transcript
        return SudokuObservation(
            prompt=told.strip(),
            messages=[SudokuMessage(content=told)],
            info={"empty": self._original.empty},
            reward=0.0,
        )

    def _step_original(self, game: OriginalGame, move: str) -> SudokuObservation:
        done, told = game.step(move), game.transcript
        if done:
            self._original = None
        return SudokuObservation(
            prompt=self._game if game.turn else told.strip(),
            messages=[SudokuMessage(content=told)],
            info={"solution": lines(game.solution)} if done else {},
            done=done,
            reward=game.reward,
        )

    def step(self, action: SudokuAction, timeout_s: float | None = None, **_: Any) -> SudokuObservation:
        if self._original is not None:
            self._state.step_count += 1
            return self._step_original(self._original, action.message)
        if self._puzzle is None:
            raise ValueError("no episode runs: reset first, with a seed")
        self._state.step_count += 1
        puzzle, said = self._puzzle, self._play(action.message)
        done = puzzle.left == 0 or self._mistakes_left < 0
        info = self._progress() | ({"solution": lines(puzzle.solution)} if done else {})
        if done:
            self._puzzle = None
        return SudokuObservation(messages=[SudokuMessage(content=said)], info=info, done=done, reward=puzzle.share)

    def _play(self, message: str) -> str:
        """Makes a move; what the player is told of it."""
        puzzle, before = self._puzzle, self._penciled()
        assert puzzle is not None
        try:
            row, column, digit = move_in(message)
            puzzle.place(row, column, digit)
        except ValueError as why:
            self._mistakes_left -= 1
            return refused(str(why), puzzle.left, puzzle.empty, max(self._mistakes_left, 0))
        new = [each for each in self._penciled() if each not in before]
        return placed(row, column, digit, puzzle.left, puzzle.empty, new)

    def _penciled(self) -> list[str]:
        """The marks; none where the player gets none."""
        return penciled(self._puzzle.board) if self._puzzle and self._marks else []

    def _progress(self) -> dict[str, Any]:
        assert self._puzzle is not None
        return {
            "left": self._puzzle.left,
            "empty": self._puzzle.empty,
            "mistakes_left": max(self._mistakes_left, 0),
        }

    @property
    def state(self) -> State:
        return self._state


def check(clues: int, most_clues: int, mistakes: int) -> None:
    """Raises ValueError, in words, for what no puzzle can be."""
    if not FEWEST_CLUES <= clues <= MOST_CLUES:
        raise ValueError(f"clues must be {FEWEST_CLUES} to {MOST_CLUES}, not {clues}")
    if not clues <= most_clues <= MOST_CLUES:
        raise ValueError(f"most_clues must be {clues} (the clues) to {MOST_CLUES}, not {most_clues}")
    if not 0 <= mistakes <= MOST_MISTAKES:
        raise ValueError(f"mistakes must be 0 to {MOST_MISTAKES}, not {mistakes}")


def move_in(message: str) -> tuple[int, int, int]:
    """Row, column and digit. Raises ValueError where there is no move."""
    found = re.search(r"\[(\d{1,9})\s(\d{1,9})\s(\d{1,9})\]", message)
    if found is None:
        raise ValueError("a move is [row column digit], such as [5 3 7].")
    row, column, digit = map(int, found.groups())
    return row, column, digit
