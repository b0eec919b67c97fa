"""OpenSpiel's Catch as an OpenEnv environment, on the wire of the published OpenSpiel environment.

A reset names its question whole (seed, rows, columns, least_moves, most_moves). The reward is 1.0 where the ball was
caught and 0.0 where it was missed: OpenSpiel's own is +1 and -1.
"""

from functools import lru_cache
from typing import Any, Literal
from uuid import uuid4

import pyspiel
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, ValidationError

from .board import Board, opening_of

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

    async def step_async(self, action: CatchAction, timeout_s: float | None = None, **given: Any) -> CatchObservation:
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
