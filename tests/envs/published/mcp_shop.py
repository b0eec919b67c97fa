"""A small environment of MCP tools, written with OpenEnv's own classes and nothing of this project.

The player buys fruit for a given sum. The question follows from the seed; `Careless` ignores it, as many servers do.
"""

import random
from typing import Any, Literal

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ToolErrorType
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import BaseModel

PRICES = {"apple": 2, "pear": 3, "plum": 5}


class QuestionObservation(Observation):
    question: str
    rules: str = ""


class Prompted(Observation):
    task: dict[str, Any]


class Item(BaseModel):
    fruit: str
    number: int = 1


class Shop(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("shop")

        @tools.tool
        def price(fruit: Literal["apple", "pear", "plum"], number: int = 1) -> int:
            """What a fruit costs.

            Args:
                fruit: Its name.
                number: How many.

            Returns:
                The sum in cents.
            """
            return PRICES[fruit] * number

        @tools.tool
        def buy(items: list[Item], note: str | None = None) -> str:
            """Buy the fruit. Returns: nothing more is sold."""
            self.paid = sum(PRICES[item.fruit] * item.number for item in items)
            return f"You paid {self.paid}."

        @tools.tool
        def wait_for_stock() -> str:
            """Never answers in time."""
            raise TimeoutError

        super().__init__(tools)
        self.sum, self.paid = 0, None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, rules: str = "", most: int = 50, **_: Any
    ) -> Any:
        self.paid = None
        self.sum = self.drawn(seed, most)
        self._state = State(episode_id=episode_id, step_count=0)
        return QuestionObservation(question=f"Spend exactly {self.sum} cents.", rules=rules, done=False, reward=0.5)

    def drawn(self, seed: int | None, most: int) -> int:
        return random.Random(seed).randint(10, most)

    async def step_async(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        observation = await super().step_async(action, timeout_s=0.2, **given)
        self._state.step_count += 1
        if isinstance(action, CallToolAction):
            observation.done = self.paid is not None
            observation.reward = 8.0 if self.paid == self.sum else (0.0 if observation.done else 1.0)
        if isinstance(observation, CallToolObservation) and observation.tool_name == "wait_for_stock":
            assert observation.error is not None
            observation.error.error_type = ToolErrorType.TIMEOUT
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("call a tool")

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="shop", description="Fruit.", version="1.2")

    @property
    def state(self) -> State:
        return self._state


class Careless(Shop):
    """Ignores the seed."""

    def drawn(self, seed: int | None, most: int) -> int:
        return random.SystemRandom().randint(10, 10**9)


class ByIndex(Shop):
    """Takes the index of a task in place of a seed, as what OpenEnv's importers make; its prompt is a message."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, index: int = 0, **_: Any) -> Prompted:  # type: ignore[override]
        observation = super().reset(seed=index)
        prompt = [{"role": "user", "content": observation.question}]
        return Prompted(task={"prompt": prompt, "answer": str(self.sum)}, done=False)


class OneQuestion(Shop):
    """Has one question, whatever the seed."""

    def drawn(self, seed: int | None, most: int) -> int:
        return 7


def app(shop: type[Shop] = Shop) -> FastAPI:
    return create_app(shop, CallToolAction, CallToolObservation, env_name="shop", max_concurrent_envs=8)
