"""A small server that answers with the wire of the published OpenSpiel environment: its reset takes no seed.

As read in envs/openspiel_env/server/openspiel_environment.py of huggingface/OpenEnv at 385de5eb, which is not
on PyPI.
"""

import random
from typing import Any

import pyspiel
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class OpenSpielAction(Action):
    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = Field(default_factory=dict)


class OpenSpielObservation(Observation):
    info_state: list[float]
    legal_actions: list[int]
    game_phase: str
    current_player_id: int
    opponent_last_action: int | None = None


class Published(Environment[OpenSpielAction, OpenSpielObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self) -> OpenSpielObservation:  # type: ignore[override]
        self.game = pyspiel.load_game("catch").new_initial_state()
        self.game.apply_action(random.randrange(5))
        return self.observed("initial")

    def step(self, action: OpenSpielAction, timeout_s: float | None = None, **_: Any) -> OpenSpielObservation:
        self.game.apply_action(action.action_id)
        return self.observed("terminal" if self.game.is_terminal() else "playing")

    def observed(self, phase: str) -> OpenSpielObservation:
        return OpenSpielObservation(
            info_state=self.game.observation_tensor(0),
            legal_actions=self.game.legal_actions(),
            game_phase=phase,
            current_player_id=self.game.current_player(),
            done=self.game.is_terminal(),
            reward=self.game.rewards()[0],
        )

    @property
    def state(self) -> State:
        return State(episode_id=None, step_count=0)


def app() -> FastAPI:
    return create_app(Published, OpenSpielAction, OpenSpielObservation, env_name="openspiel_env", max_concurrent_envs=8)
