"""A small server that answers with the wire of the published Echo environment: MCP's tools, no question, no reward.

As read in envs/echo_env/server/app.py and README.md of huggingface/OpenEnv at 385de5eb, which is not on PyPI.
"""

from typing import Any

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class EchoEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("echo_env")

        @tools.tool
        def echo_message(message: str) -> str:
            """The message, as it came."""
            return message

        @tools.tool
        def echo_with_length(message: str) -> dict[str, Any]:
            """The message, and how long it is."""
            return {"message": message, "length": len(message)}

        super().__init__(tools)
        self._state = State(episode_id=None, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._state = State(episode_id=episode_id, step_count=0)
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def step(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        self._state.step_count += 1
        return self.unpaid(super().step(action, timeout_s=timeout_s, **given))

    async def step_async(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        self._state.step_count += 1
        return self.unpaid(await super().step_async(action, timeout_s=timeout_s, **given))

    @staticmethod
    def unpaid(observation: Observation) -> Observation:
        observation.reward = 0.0
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(done=False, reward=0.0, metadata={"error": "unknown action"})

    @property
    def state(self) -> State:
        return self._state


def app() -> FastAPI:
    return create_app(EchoEnvironment, CallToolAction, CallToolObservation, env_name="echo_env", max_concurrent_envs=8)
