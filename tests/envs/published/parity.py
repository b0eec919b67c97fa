"""Is a number odd or even: servers with the properties of published ones, over typed actions or MCP tools.

In: what a server does with the seed, its rewards, its errors. Out: an ASGI application.
"""

import random
import time
from typing import Any, Literal
from uuid import uuid4

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field, field_validator

TASKS = {"easy": 2, "medium": 37, "hard": 418}

Start = Literal["seeded", "fixed", "random", "counting", "by name", "hidden", "first of a session"]


class Label(Action):
    """Say which it is."""

    label: str = Field(..., description="odd or even")


class StrictLabel(Action):
    label: str

    @field_validator("label")
    @classmethod
    def _is_known(cls, label: str) -> str:
        if label not in ("odd", "even"):
            raise ValueError("odd or even")
        return label


class Asked(Observation):
    text: str = ""
    hint: str = ""
    episode_id: str = ""


class ParityState(State):
    secret: str = ""


def parity(
    start: Start = "seeded",
    low: float = 0.0,
    high: float = 1.0,
    hint: str = "",
    crashes_on: str = "",
    rewards: bool = True,
    with_ids: bool = False,
    seconds: float = 0.0,
) -> type[Environment]:
    """Return the class of a server.

    Args:
        low, high: The reward of a wrong answer and of a right one.
        crashes_on: A label on which a step raises.
        rewards: Whether it rewards and ends an episode at all.
        with_ids: Whether an observation has a new id in every episode.
        seconds: How long a step takes.
    """

    class Parity(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        resets = 0

        def __init__(self) -> None:
            super().__init__()
            self._n = 0
            self._id = ""
            self._dice = random.Random(0)

        def reset(self, seed: int | None = None, episode_id: str | None = None, task_id: str = "easy", **_: Any) -> Any:
            Parity.resets += 1
            draws = {
                "fixed": 7,
                "hidden": random.randint(1, 9999),
                "random": random.randint(1, 9999),
                "counting": Parity.resets,
                "first of a session": self._dice.randint(1, 9999),
                "by name": TASKS.get(task_id, 2),
            }
            self._n = draws.get(start, random.Random(seed).randint(1, 9999))
            self._id = uuid4().hex if with_ids else ""
            shown = "a secret number" if start == "hidden" else str(self._n)
            return Asked(text=f"Is {shown} odd or even?", hint=hint, episode_id=self._id, reward=0.0, done=False)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            time.sleep(seconds)
            if crashes_on and action.label == crashes_on:
                raise RuntimeError(f"{crashes_on} is not allowed")
            if not rewards:
                return Asked(text="go on", reward=None, done=False)
            right = action.label == ("even" if self._n % 2 == 0 else "odd")
            return Asked(text="graded", hint=hint, episode_id=self._id, reward=high if right else low, done=True)

        @property
        def state(self) -> ParityState:
            return ParityState(step_count=0, secret=f"number {self._n}" if start == "hidden" else "")

    return Parity


def app(made: type[Environment], action: type[Action] = Label, sessions: int = 16, shared: bool = False) -> FastAPI:
    """Return a server of such a class. `shared`: all sessions play one instance."""
    one = made() if shared else None
    return create_app(lambda: one or made(), action, Asked, env_name="parity", max_concurrent_envs=sessions)


def over_http() -> FastAPI:
    """Return a server that has /reset and /step, and no WebSocket."""
    server, now = FastAPI(title="parity"), {"n": 0}

    class Reset(BaseModel):
        seed: int | None = None

    @server.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    @server.post("/reset")
    def reset(given: Reset) -> dict[str, Any]:
        now["n"] = random.Random(given.seed).randint(1, 999)
        return {"observation": {"text": f"Is {now['n']} odd or even?"}, "reward": 0.0, "done": False}

    @server.post("/step")
    def step(given: Label) -> dict[str, Any]:
        right = given.label == ("even" if now["n"] % 2 == 0 else "odd")
        return {"observation": {"text": "graded"}, "reward": float(right), "done": True}

    return server
