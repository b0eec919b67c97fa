"""Episodes in environments whose tools only their server knows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.episodes.episode import Episode


@contextmanager
def playing(server: EnvironmentServer) -> Iterator[Callable[[EnvironmentSpec, int], Episode]]:
    """Yields what begins an episode on the server, of a task and a seed; all sessions end with the block."""
    made = []

    def begin(spec: EnvironmentSpec, seed: int) -> Episode:
        made.append(completed(spec, server).make(Session(server)))
        return Episode(made[-1], seed)

    yield begin
    for each in made:
        each.close()


def called(tool: str, **arguments: Any) -> dict[str, Any]:
    """A model's message that calls a tool."""
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
