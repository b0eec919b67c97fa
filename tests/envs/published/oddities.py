"""Servers that others publish in ways that are easily misjudged, written with OpenEnv's own classes.

Out: ASGI applications.
"""

import random
import time
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, WebSocket
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction, ListToolsObservation
from openenv.core.env_server.mcp_types import Tool as McpTool
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter


class Text(Observation):
    text: str = ""
    reset_ms: float | None = None
    episode_id: str = ""


class ToldState(State):
    current_question: str = ""


class Label(Action):
    label: str = Field(..., description="odd or even")


class Guess(Action):
    guess: int = Field(..., ge=1, le=100)


class Move(Action):
    """Move on the line."""

    action_type: Literal["move"] = "move"
    by: int = Field(..., ge=-3, le=3)


class Dig(Action):
    """Dig where you stand."""

    action_type: Literal["dig"] = "dig"


class Step(RootModel[Annotated[Move | Dig, Field(discriminator="action_type")]]):
    """Move or dig."""


class Order(BaseModel):
    side: Literal["buy", "sell"]
    symbol: str


class Deal(Action):
    order: Order
    price: float = Field(..., gt=0, le=100)


class Odd(Environment):
    """Is a number odd or even."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    drawn = random.Random()

    def __init__(self) -> None:
        super().__init__()
        self.n, self.turns = 0, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        self.n, self.turns = random.Random(seed).randint(1, 99), 0
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Text(text="graded", reward=float(action.label == ("even" if self.n % 2 == 0 else "odd")), done=True)

    @property
    def state(self) -> State:
        return State(step_count=0)


class Timed(Odd):
    """Says how long a reset took, and numbers its episodes."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        asked = super().reset(seed)
        asked.reset_ms, asked.episode_id = self.drawn.random(), f"ep-{time.perf_counter_ns()}"
        return asked


class Counting(Odd):
    """Tells with each observation how many steps its session has had, in all its episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        super().reset(seed)
        return Text(text=f"Frame {self.frames}: is {self.n} odd or even?", reward=0.0, done=False)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.frames += 4
        return super().step(action)


class Coin(Odd):
    """Draws who begins, whatever the seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        super().reset(0)
        self.side = self.drawn.choice(["white", "black"])
        return Text(text=f"You play {self.side}.", reward=0.0, done=False)


class Late(Odd):
    """Rewards nothing before the 20th step, and ends no episode."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.turns += 1
        return Text(text=f"step {self.turns}", reward=float(self.turns == 20), done=False)


class Secret(Odd):
    """Shows the same start under every seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        super().reset(seed)
        return Text(text="Find the number from 1 to 100 in 7 guesses.", reward=0.0, done=False)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.turns += 1
        if action.guess == self.n:
            return Text(text="Found.", reward=1.0, done=True)
        return Text(text="higher" if self.n > action.guess else "lower", reward=0.0, done=self.turns >= 7)


class Told(Odd):
    """Asks its question in the session's state."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        super().reset(seed)
        return Text(text="Ready.", reward=0.0, done=False)

    @property
    def state(self) -> State:
        return ToldState(step_count=0, current_question=f"Is {self.n} odd or even?")


class Rows(Odd):
    """Has fifty rows."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        if (seed or 0) >= 50:
            raise IndexError("there are fifty rows")
        return super().reset(seed)


class Holes(Odd):
    """Fails under some seeds."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        if seed == 5:
            raise RuntimeError("no such puzzle")
        return super().reset(seed)


class Line(Odd):
    """The player says when the episode ends: by digging, which costs the more the farther away it is."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        if action.root.action_type == "move":
            self.n += action.root.by
            return Text(text=str(self.n), reward=0.0, done=False)
        return Text(text="dug", reward=1.0 - abs(self.n - 50) / 25, done=True)


class Paid(Odd):
    """Pays for every valid deal."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Text(text="done", reward=1.0, done=True)


class Keyless(Odd):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("a key is not set")


class Broken(Odd):
    """Every step fails in its own code."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Text(text=self.answer)  # pyright: ignore[reportAttributeAccessIssue]


class Unbegun(Odd):
    """A reset fails in its own code."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        return Text(text=self.question)  # pyright: ignore[reportAttributeAccessIssue]


class Levels(Odd):
    """Its numbers are the larger, the harder it is; gentle is another name of easy."""

    numbers: ClassVar[dict[str, int]] = {"easy": 4, "medium": 57, "hard": 9_341, "gentle": 4}

    def reset(self, seed: int | None = None, episode_id: str | None = None, difficulty: str = "easy", **_: Any) -> Any:
        self.n = self.numbers[difficulty]
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)


class OtherLevels(Levels):
    """Has an expert level in place of a hard one."""

    numbers: ClassVar[dict[str, int]] = {"easy": 4, "medium": 57, "expert": 9_341}


class Repeating(Odd):
    """Repeats a level's name, and has one task."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, difficulty: str = "easy", **_: Any) -> Any:
        self.n = 4
        return Text(text=f"Level {difficulty.upper()}. Is 4 odd or even?", reward=0.0, done=False)


class FewOfALevel(Odd):
    """Four numbers a level."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, difficulty: str = "easy", **_: Any) -> Any:
        self.n = {"easy": 1, "medium": 100, "hard": 10_000}[difficulty] + random.Random(seed).randint(0, 3)
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)


class Dispatching(Odd):
    """Calls its own method of the label's name."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Text(text="graded", reward=getattr(self, action.label)(), done=True)


class Ending(Odd):
    """Its resets go through a list once."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        self.turns += 1
        self.n = [12, 345, 6789, 4, 5][self.turns - 1]
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)


class InTurn(Odd):
    """Each reset of a session takes the next of three numbers."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        self.turns += 1
        self.n = (12, 345, 6789)[(self.turns - 1) % 3]
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)


class SeededLevels(Odd):
    """A level says how large its numbers are, and the seed draws one."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, difficulty: str = "easy", **_: Any) -> Any:
        digits = {"easy": 1, "medium": 3, "hard": 6}[difficulty]
        self.n = random.Random(seed).randint(10 ** (digits - 1), 10**digits - 1)
        return Text(text=f"Is {self.n} odd or even?", reward=0.0, done=False)


def listing(listed: Any, levels: type[Odd] = Levels) -> FastAPI:
    """A server with levels, and a list of them."""
    app = served(levels)
    app.add_api_route("/tasks", lambda: listed)
    return app


class Page:
    """No model, so that JSON Schema cannot describe it."""


class Pages(Text):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    pages: list[Page] = Field(default_factory=list)


class OwnFields(Odd):
    """Lists MCP tools, and answers in fields of its own: `tool_result`, and an error as a text."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        if isinstance(action, ListToolsAction):
            schema = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
            return ListToolsObservation(tools=[McpTool(name="judge", description="Odd?", input_schema=schema)])
        label = action.arguments["answer" if action.tool_name == "grade" else "label"]  # it lists no grade
        if label not in ("odd", "even"):
            return OwnReply(tool_name="judge", error=f"no such label: {label}", reward=0.0, done=False)
        right = label == ("even" if self.n % 2 == 0 else "odd")
        return OwnReply(tool_name="judge", tool_result={"label": label}, reward=float(right), done=True)


class OwnReply(Observation):
    tool_name: str
    tool_result: Any = None
    error: str | None = None


class OwnCall(Action):
    """One of the protocol's two actions for tools."""

    @classmethod
    def model_validate(cls, obj: Any, **_: Any) -> Any:
        return CALLS.validate_python(obj)

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        return CALLS.json_schema()


CALLS: TypeAdapter[Any] = TypeAdapter(Annotated[ListToolsAction | CallToolAction, Field(discriminator="type")])


def served(made: type[Odd], action: Any = Label) -> FastAPI:
    return create_app(made, action, Text, env_name="odd", max_concurrent_envs=16)


def undescribed() -> FastAPI:
    return create_app(Odd, Label, Pages, env_name="odd", max_concurrent_envs=16)


def shared() -> FastAPI:
    """One instance behind all sessions, whose state does not show it."""
    one = Odd()
    return create_app(lambda: one, Label, Text, env_name="odd", max_concurrent_envs=16)


def closing() -> FastAPI:
    """Closes its WebSocket at once: a token is missing."""
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.websocket("/ws")
    async def close(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close(code=1008, reason="token missing")

    return app
