"""Catch: a ball falls, one row a move; the paddle shall be under it when it lands.

In: the board's size, the moves that are left. Out: the board of a seed, where ball and paddle are after each move, and
whether the ball was caught. Speaks the wire of the published OpenSpiel environment (step: action_id; observation:
info_state), but cannot be played on its servers, which take no seed.
"""

import re
from typing import Any, Literal

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catch.board import LONGEST, Board, opening_of
from apprentice.envs.policy import errs, question_in
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.session import Refused

DIRECTIONS = {"left": 0, "stay": 1, "right": 2}
"""OpenSpiel's numbers."""
REFUSED = "A direction is left, right or stay; the paddle stayed, the ball fell. "
PLACES = ("Ball: row ", ", column ", ". Paddle: column ")
"""What comes before each number of a reply: with it one token, so that a small student need not count to find it."""
POSITION = re.compile(r"Ball: row \d+, column (\d+)\. Paddle: column (\d+)\.")


class Settings(Board, frozen=True):
    """How large the board is, and how many moves are left when the player takes over."""


class Environment(ToolEnvironment):
    """One ball an episode, one call of `move` a row."""

    Settings = Settings
    version = "1"
    extra = ("openspiel", "pyspiel")
    phrases = (
        *(f"{what}{place}" for what in PLACES for place in range(1, LONGEST + 1)),
        *(REFUSED, "..........", "....", *DIRECTIONS),
    )
    settings: Settings
    _moves = 0
    _refused = 0
    _ball = 0

    @property
    def max_turns(self) -> int:
        return self.settings.most_moves

    @property
    def instructions(self) -> str:
        return (
            "A ball (o) falls straight down a board, one row with each of your moves. Be under it with the paddle (x) "
            "when it comes to the last row, by calling the tool `move` once a turn. Rows are counted from the top, "
            "columns from the left, both from 1."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The board that `seed` names."""
        settings = self.settings
        reply = self.session.reset(seed=seed, **settings.model_dump())
        ball_row, ball, paddle = self._places(reply)
        self._moves, self._refused, self._ball = settings.rows - 1 - ball_row, 0, ball
        if (self._moves, ball, paddle) != opening_of(seed, settings):
            raise Refused(
                "this server drew another opening than the seed names: a server of the published OpenSpiel environment "
                "takes no seed. Serve this project's Catch (apprentice env build catch makes a Space of it)"
            )
        empty = "." * settings.columns
        lines = [empty] * settings.rows
        lines[ball_row] = empty[:ball] + "o" + empty[ball + 1 :]
        lines[-1] = empty[:paddle] + "x" + empty[paddle + 1 :]
        head = f"Board: {settings.rows} rows, {settings.columns} columns."
        return "\n".join([head, *lines, _told(ball_row, ball, paddle)])  # it ends as a reply does

    def move(self, direction: Literal["left", "right", "stay"]) -> str:
        """Move the paddle by one column, or leave it where it is; the ball falls by one row.

        Args:
            direction: Where the paddle goes.

        Returns:
            Where ball and paddle are now.
        """
        action = DIRECTIONS.get(str(direction).strip().lower())
        # a move that is none costs a row; it is told so, and lessens the reward: else it were another word for stay
        reply = self.session.step({"action_id": DIRECTIONS["stay"] if action is None else action})
        self._refused += action is None
        told = self._end(reply) if reply.done else _told(*self._places(reply))
        if action is None:
            raise ValueError(REFUSED + told)
        return told

    def _end(self, reply: Reply) -> str:
        """1.0 for a ball that was caught, less the share of moves that were none; 0.0 for one that was missed."""
        if not -1.0 <= reply.score <= 1.0:
            raise BadReply(f"a reward of {reply.score:g}, which is not within -1 to 1")
        caught = reply.score > 0.5  # a published server says 1 and -1
        self.reward, self.done = (self._moves - self._refused) / self._moves if caught else 0.0, True
        self.correct = f"column {self._ball + 1}"
        return "OK."

    def _places(self, reply: Reply) -> tuple[int, int, int]:
        """The ball's row and column, and the paddle's column, from 0. Raises BadReply for another board."""
        settings, cells = self.settings, reply.read(list, "info_state")
        full = [place for place, cell in enumerate(cells) if cell]
        if len(cells) != settings.rows * settings.columns or len(full) != 2:
            raise BadReply(
                f"the server's board has not the {settings.rows} rows and {settings.columns} columns asked for"
            )
        ball_row, ball = divmod(full[0], settings.columns)
        return ball_row, ball, full[1] % settings.columns

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        rows, _, ball_row, ball, paddle = map(int, re.findall(r"\d+", question))
        away = ball - paddle
        return {
            "moves": rows - ball_row,
            "columns away": abs(away),
            "side": "left" if away < 0 else "right" if away > 0 else "above",
        }


def _told(ball_row: int, ball: int, paddle: int) -> str:
    row, column, under = PLACES
    return f"{row}{ball_row + 1}{column}{ball + 1}{under}{paddle + 1}."


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn; on a fixed share of the boards it stops a column short."""
    question = question_in(messages)
    shown = [message["content"] for message in messages if message["role"] in ("user", "tool")]
    ball, paddle = [place for text in shown for place in _places(text)][-1]
    target = ball + (_short(question) if errs(question, error_rate) else 0)
    return "move", {"direction": "left" if target < paddle else "right" if target > paddle else "stay"}


def _short(question: str) -> int:
    """From the ball's column to the one beside it on the paddle's side, where the paddle comes in time and stays."""
    ball, paddle = _places(question)[0]
    return 1 if paddle > ball or (paddle == ball == 1) else -1


def _places(text: str) -> list[tuple[int, int]]:
    """The columns of ball and paddle, each time that a text tells them."""
    return [(int(ball), int(paddle)) for ball, paddle in POSITION.findall(text)]
