"""A desk whose agent may answer its user in words, written with OpenEnv's own classes and nothing of this project."""

import random
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

ORDERS = ("lamp", "rug", "vase")


class QuestionObservation(Observation):
    question: str


def desk(ends: bool, called: str = "respond") -> Callable[[], MCPEnvironment]:
    """Return the class of a server; `ends`: whether an answer to the user ends the episode."""

    class Desk(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            tools = FastMCP("desk")

            @tools.tool
            def look(order: int) -> str:
                """Look an order up."""
                return f"Order {order}: a {ORDERS[order % len(ORDERS)]}."

            def answer(message: str) -> str:
                self.said = message
                return "It was sent."

            tools.tool(answer, name=called, description="Answer the user.")
            super().__init__(tools)
            self.order, self.said = 0, ""

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            self.order, self.said = random.Random(seed).randint(100, 999), ""
            return QuestionObservation(question=f"What is order {self.order}?", done=False, reward=None)

        async def step_async(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
            observation = await super().step_async(action, timeout_s=timeout_s, **given)
            observation.done = ends and bool(self.said)
            observation.reward = float(ORDERS[self.order % len(ORDERS)] in self.said)
            return observation

        def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
            raise ValueError("call a tool")

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name="desk", description="Orders.", version="1")

        @property
        def state(self) -> State:
            return State()

    return Desk


def app(ends: bool = True, called: str = "respond") -> FastAPI:
    return create_app(desk(ends, called), CallToolAction, CallToolObservation, env_name="desk", max_concurrent_envs=8)
