"""Catch: a ball falls, one row a move; the paddle shall be under it when it lands.

In: the board's size, the moves that are left. Out: the board of a seed, where ball and paddle are after each move, and
whether the ball was caught. Speaks the wire of the published OpenSpiel environment (step: action_id; observation:
info_state), but cannot be played on its servers, which take no seed.
Why openings: OpenSpiel's Catch has one start a column. Here the ball has fallen some rows before the player takes over,
and the paddle has moved meanwhile: hundreds of questions. The ball can be caught from each of them.
"""

import random
import re
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.policy import errs, question_in
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.session import Refused

LONGEST = 40
"""Rows, and columns, of the largest board."""
DIRECTIONS = {"left": 0, "stay": 1, "right": 2}
"""OpenSpiel's numbers."""
REFUSED = "A direction is left, right or stay; the paddle stayed, the ball fell. "
PLACES = ("Ball: row ", ", column ", ". Paddle: column ")
"""What comes before each number of a reply: with it one token, so that a small student need not count to find it."""
POSITION = re.compile(r"Ball: row \d+, column (\d+)\. Paddle: column (\d+)\.")


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
        reply = self._start(seed, **settings.model_dump())
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
        reply = self._act({"action_id": DIRECTIONS["stay"] if action is None else action})
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

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
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


@cache
def server_classes() -> tuple[type[Any], type[Any], type[Any]]:
    """Return the OpenEnv environment, its action and its observation; a Space has them in a file without this project.

    A reset names its question whole (seed, rows, columns, least_moves, most_moves). The reward is 1.0 where the ball
    was caught and 0.0 where it was missed: OpenSpiel's own is +1 and -1.
    """
    import pyspiel
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    LEFT, STAY, RIGHT = 0, 1, 2

    class CatchAction(Action):
        """One move: 0 is left, 1 is stay, 2 is right."""

        action_id: int
        game_name: Literal["catch"] = "catch"
        game_params: dict[str, Any] = Field(default_factory=dict)
        """The published action has it; here, as there, the board is the reset's."""

    class CatchObservation(Observation):
        """The board, row by row: 1.0 where the ball is and where the paddle is, in the last row."""

        info_state: list[float]
        legal_actions: list[int]
        game_phase: Literal["initial", "playing", "terminal"] = "playing"
        current_player_id: int = 0
        opponent_last_action: int | None = None

    class CatchEnvironment(Environment[CatchAction, CatchObservation, State]):
        """One falling ball an episode. Sessions share nothing that changes."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self._ball: Any = None
            self._state = State(episode_id=None, step_count=0)

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            rows: int = 10,
            columns: int = 5,
            least_moves: int | None = None,
            most_moves: int | None = None,
            **_: Any,
        ) -> CatchObservation:
            """A reset that leaves out the moves plays OpenSpiel's whole game."""
            if not isinstance(seed, int):
                raise ValueError(
                    "a reset names its question: send a seed, such as reset(seed=7); rows, columns, least_moves and "
                    "most_moves may follow"
                )
            given = {"rows": rows, "columns": columns, "least_moves": least_moves, "most_moves": most_moves}
            try:
                whole = {"least_moves": rows - 1, "most_moves": rows - 1} if least_moves is None is most_moves else {}
                board = Board.model_validate(given | whole)
            except (TypeError, ValidationError) as error:
                raise ValueError(f"Catch refuses {given}: {error}") from error
            self._ball = _opened(seed, board)
            self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
            return self._seen("initial")

        def step(self, action: CatchAction, timeout_s: float | None = None, **_: Any) -> CatchObservation:
            if self._ball is None or self._ball.is_terminal():
                raise ValueError("no episode runs: reset first")
            if action.action_id not in self._ball.legal_actions():
                raise ValueError(f"action_id {action.action_id} is no move: 0 is left, 1 is stay, 2 is right")
            self._ball.apply_action(action.action_id)
            self._state.step_count += 1
            return self._seen("terminal" if self._ball.is_terminal() else "playing")

        async def reset_async(
            self, seed: int | None = None, episode_id: str | None = None, **given: Any
        ) -> CatchObservation:
            """As `reset`; on the server's loop, since a thread for each session costs more than the game."""
            return self.reset(seed, episode_id, **given)

        async def step_async(
            self, action: CatchAction, timeout_s: float | None = None, **given: Any
        ) -> CatchObservation:
            """As `step`."""
            return self.step(action, timeout_s, **given)

        @property
        def state(self) -> State:
            return self._state

        def _seen(self, phase: Literal["initial", "playing", "terminal"]) -> CatchObservation:
            done = self._ball.is_terminal()
            return CatchObservation(
                info_state=self._ball.observation_tensor(0),
                legal_actions=self._ball.legal_actions(),
                game_phase=phase,
                current_player_id=self._ball.current_player(),
                done=done,
                reward=(self._ball.returns()[0] + 1) / 2 if done else 0.0,
            )

    def _opened(seed: int, board: Board) -> Any:
        """OpenSpiel's state at the opening that `seed` names, come to by OpenSpiel's own moves."""
        moves, ball, paddle = opening_of(seed, board)
        state = _game(board.rows, board.columns).new_initial_state()
        state.apply_action(ball)  # chance's move: the column in which the ball appears
        away = paddle - board.columns // 2
        for fallen in range(board.rows - 1 - moves):
            state.apply_action(STAY if fallen >= abs(away) else LEFT if away < 0 else RIGHT)
        return state

    @lru_cache(maxsize=64)
    def _game(rows: int, columns: int) -> Any:
        return pyspiel.load_game("catch", {"rows": rows, "columns": columns})

    return CatchEnvironment, CatchAction, CatchObservation
