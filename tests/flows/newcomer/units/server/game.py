"""Its server."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

FACTORS = {"ten": 10, "cen": 100, "mil": 1000}


class UnitsAction(Action):
    unit: str = ""
    value: str = ""


class UnitsObservation(Observation):
    question: str = ""
    reply: str = ""
    correct_answer: str | None = None


class UnitsEnvironment(Environment[UnitsAction, UnitsObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._right = ""
        self._state = State(episode_id=None, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> UnitsObservation:
        draw = random.Random(seed)
        number, unit = draw.randint(100, 999), draw.choice([*FACTORS])
        self._right = str(number * FACTORS[unit])
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return UnitsObservation(question=f"{number} {unit}", done=False, reward=0.0)

    def step(self, action: UnitsAction, timeout_s: float | None = None, **_: Any) -> UnitsObservation:
        self._state.step_count += 1
        if action.unit:
            return UnitsObservation(reply=str(FACTORS.get(action.unit, "unknown")), done=False, reward=0.0)
        right = self._right
        return UnitsObservation(correct_answer=right, done=True, reward=float(action.value == right))

    @property
    def state(self) -> State:
        return self._state
