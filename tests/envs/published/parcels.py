"""A server whose action is a union within an object, and whose observations have times, pictures and arrays.

In: what else it does as published ones do. Out: an ASGI application.
"""

import random
import time
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field

LEVELS = {"near": 1, "far": 2, "top": 3}


class Color(StrEnum):
    red = "red"
    blue = "blue"


class Move(BaseModel):
    kind: Literal["move"] = "move"
    shelf: int = Field(ge=1, le=3)


class Stick(BaseModel):
    kind: Literal["stick"] = "stick"
    color: Color
    note: str | None = None


class Handle(Action):
    """Handle a parcel.

    Attributes:
        deed: What to do with it.
    """

    deed: Annotated[Move | Stick, Field(discriminator="kind")]
    force: Annotated[float, Field(ge=0.5, le=2.0)] | None = None


class Seen(Observation):
    text: str = ""
    sent_at: float = 0.0
    camera: dict[str, Any] = Field(default_factory=dict)
    photo: str = ""


class Parcels(Environment):
    """The shelf follows from the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.n, self.shelf, self._state = 0, 1, State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self._state = State(episode_id=episode_id, step_count=0)
        self.n = random.Random(seed).randint(1, 9999)
        self.shelf = self.n % 3 + 1
        return self.seen(f"Parcel {self.n} belongs on shelf {self.shelf}.")

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Seen:
        self._state.step_count += 1
        return self.graded(action)

    def graded(self, action: Any) -> Seen:
        is_right = action.deed.kind == "move" and action.deed.shelf == self.shelf
        return self.seen("stored", reward=float(is_right), done=True)

    def seen(self, text: str, **given: Any) -> Seen:
        depth = [[round(random.Random(self.n + row).random(), 3)] * 40 for row in range(40)]
        photo = "iVBORw0KGgo1" * 60
        return Seen(text=text, sent_at=time.time(), camera={"depth": depth, "lens": self.n}, photo=photo, **given)

    @property
    def state(self) -> State:
        return self._state


class ByLevel(Parcels):
    """Takes a level by its name, and nothing else."""

    def reset(self, level: str) -> Seen:  # type: ignore[override]
        self._state = State(step_count=0)
        self.n = self.shelf = LEVELS[level]
        return self.seen(f"Put it {level}.")


class Few(Parcels):
    """Has five starts, whatever the seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        return super().reset(seed=(seed or 0) % 5, episode_id=episode_id)


class Ungraded(Parcels):
    """Ends an episode without a reward."""

    def graded(self, action: Any) -> Seen:
        return self.seen("stored", done=True)


class Strict(Parcels):
    """Ends an episode after two calls that are no good, and always asks the same."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        return super().reset(seed=1, episode_id=episode_id)

    def graded(self, action: Any) -> Seen:
        return self.seen("no", reward=0.0, done=self._state.step_count == 2)


class Moody(Parcels):
    """Crashes on the second step, and from then on always."""

    has_crashed = False

    def graded(self, action: Any) -> Seen:
        if self._state.step_count == 2 or Moody.has_crashed:
            Moody.has_crashed = True
            raise RuntimeError("no room on the shelf")
        return self.seen("go on", reward=0.0)


def app(parcels: type[Parcels] = Parcels, shared: bool = False) -> FastAPI:
    """Return a server of such a class. `shared`: all sessions play one instance."""
    one = parcels() if shared else None
    served = create_app(lambda: one or parcels(), Handle, Seen, env_name="parcels", max_concurrent_envs=16)
    if parcels is ByLevel:
        served.add_api_route("/levels", lambda: {"levels": [{"name": each, "about": "a shelf"} for each in LEVELS]})
    return served
