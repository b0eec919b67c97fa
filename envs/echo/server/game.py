"""Echo as an OpenEnv environment.

A reset names its text whole (seed, words). The reward is the share of the text that came back right, from its start.
"""

import os
import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    """What is said."""

    message: str


class EchoObservation(Observation):
    """The text that is to be said, and what was said."""

    text: str
    echoed_message: str | None = None


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """One text an episode. Sessions share nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._text = ""
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, words: int = 3, **_: Any
    ) -> EchoObservation:
        if not isinstance(seed, int):
            raise ValueError("a reset names its text: seed, and words")
        if not isinstance(words, int) or not 1 <= words <= 20:
            raise ValueError("words must be a whole number, 1 to 20")
        self._text = text_of(seed, words)
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return EchoObservation(text=self._text, done=False, reward=0.0)

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        if not self._text:
            raise ValueError("no episode runs: reset first")
        right = len(os.path.commonprefix([self._text, action.message]))  # noqa: RUF071 (letters, not paths)
        text, self._text = self._text, ""
        self._state.step_count += 1
        share = right / max(len(text), len(action.message))
        return EchoObservation(text=text, echoed_message=action.message, done=True, reward=share)

    @property
    def state(self) -> State:
        return self._state


def text_of(seed: int, words: int) -> str:
    """The text that `seed` names: made-up words of three to five letters."""
    draw = random.Random(seed)
    return " ".join(
        "".join(draw.choice("aeiou" if place % 2 else "bdfgklmnprst") for place in range(draw.randint(3, 5)))
        for _ in range(words)
    )
