"""Servers whose replies hold more than a player needs, or less than a first look asks for, with OpenEnv's own classes.

Out: ASGI applications.
"""

import random
import secrets
from typing import Any

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from tests.envs.published.oddities import Label, Odd


class Ticket(Observation):
    question: str = ""
    feedback: str = ""
    session_token: str = ""
    conversation: str = ""
    score: float = 0.0
    max_steps: int = 5
    scoreboard: dict[str, int] = Field(default_factory=dict)
    document: str = ""
    result: dict[str, float] = Field(default_factory=dict)


class Asked(Odd):
    """Asks the question in one of many fields."""

    def begin(self, seed: int | None) -> Ticket:
        self.n, self.turns = random.Random(seed).randint(1, 10**6), 0
        return Ticket(question=f"Is {self.n} odd or even?", reward=0.0, done=False)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        return self.begin(seed)

    def right(self, action: Any) -> float:
        return float(action.label == ("even" if self.n % 2 == 0 else "odd"))

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Ticket(feedback="graded", reward=self.right(action), done=True)


class Tokens(Asked):
    """Gives each session a token and each conversation a number."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        asked = self.begin(seed)
        asked.session_token, asked.conversation = secrets.token_urlsafe(16), f"conv_{secrets.token_hex(4)}"
        return asked


class Tested(Asked):
    """Replies with what a test run prints: its time, and an object's address; and with a time of its own."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        printed = (
            f"Ran 3 tests in 0.{self.drawn.randint(1000, 9999)}s\n<object at {hex(self.drawn.randint(2**40, 2**41))}>"
        )
        took = {"execution_time": self.drawn.random()}
        return Ticket(feedback=printed, result=took, reward=self.right(action), done=True)


class Noisy(Asked):
    """Replies with how busy it is, which no field names."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Ticket(feedback=f"graded, load {self.drawn.random():.3f}", reward=self.right(action), done=True)


class Scoreboard(Asked):
    """Counts the episodes of all sessions beside the question."""

    episodes = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        Scoreboard.episodes += 1
        asked = self.begin(seed)
        asked.scoreboard = {"episodes": Scoreboard.episodes}
        return asked


class Attempts(Asked):
    """Takes five answers and rewards each with the whole of its score."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.turns += 1
        score = 0.25 + 0.75 * self.right(action)
        return Ticket(feedback="graded", score=score, reward=score, done=score == 1.0 or self.turns == 5)


class Ladder(Asked):
    """Pays for the first answer, whatever it is, and ends at the second."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        asked = self.begin(seed)
        asked.max_steps = 15
        return asked

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.turns += 1
        return Ticket(feedback="next", reward=float(self.turns == 1), done=self.turns == 2)


class Zero(Asked):
    """Takes 0 for no seed."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        return self.begin(seed or self.drawn.randint(1, 10**6))


class Same(Asked):
    """Begins always alike."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        return self.begin(1)


class OtherName(Asked):
    """Calls the seed by another name."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Any:
        return self.begin(given.get("random_seed", self.drawn.randint(1, 10**6)))


class ById(Asked):
    """Takes a task by its id, and draws one without it."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Any:
        return self.begin(hash_of(given.get("task_id") or str(self.drawn.random())))


class Numbered(Asked):
    """Has levels that are numbers."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Any:
        return self.begin(int(given.get("difficulty", 1)))


class Dice(Asked):
    """Seeds the generator of the whole process, of which each step draws."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        random.seed(seed)
        return self.begin(seed)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self.turns += 1
        return Ticket(feedback=f"rolled {random.randint(1, 10**6)}", reward=0.0, done=self.turns == 5)


class Long(Asked):
    """Holds the answer in a document that is longer than what is shown."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        asked = self.begin(seed)
        asked.document = "a page of text " * 2_000
        return asked


def hash_of(name: str) -> int:
    return sum(place * ord(letter) for place, letter in enumerate(name, 1))


class Called(Action):
    """Call one of the tools that the question names."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Toolbox(Asked):
    """Has tools, by a typed action of its own."""

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return Ticket(feedback=action.tool_name, reward=float(action.tool_name == "sort"), done=True)


class Shop(Observation):
    domain: str = "a market"
    objective: str = "Buy as much as you can."
    budget: int = 0
    prices: dict[str, int] = Field(default_factory=dict)


class Chat(Observation):
    messages: list[dict[str, str]] = Field(default_factory=list)


class Market(MCPEnvironment):
    """Says in numbers what changes with the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("market")
        tools.tool(lambda item: f"{item} is bought", name="buy", description="Buy an item.")
        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        draw = random.Random(seed)
        return Shop(budget=draw.randint(10, 99), prices={"tea": draw.randint(1, 10**6)}, reward=0.0, done=False)

    async def step_async(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=timeout_s, **given)
        observation.reward, observation.done = 1.0, True
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("call a tool")

    @property
    def state(self) -> State:
        return State(step_count=0)


class Talk(Market):
    """Begins with a conversation."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        asked = f"I have {random.Random(seed).randint(10, 99)} dollars."
        chat = [{"role": "system", "content": "You sell tea."}, {"role": "user", "content": asked}]
        return Chat(messages=chat, reward=0.0, done=False)


def served(made: Any, action: Any = Label, seen: Any = Ticket) -> FastAPI:
    return create_app(made, action, seen, env_name="trap", max_concurrent_envs=16)


def called(made: Any, seen: Any) -> FastAPI:
    from openenv.core.env_server.mcp_types import CallToolAction

    return create_app(made, CallToolAction, seen, env_name="market", max_concurrent_envs=16)


def listing(tasks: Any) -> FastAPI:
    app = served(ById)
    app.add_api_route("/tasks", lambda: tasks)
    return app
