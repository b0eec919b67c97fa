"""The servers of a run: started when a stage first asks, stopped when the run ends, whatever happens.

In: a recipe. Out: URLs. A cached run asks for nothing and starts nothing; a URL in the recipe is used as it is, an
image becomes a container, and anything else a child process of this one.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

from apprentice.envs.catalog import ExtraMissing, check_extra
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop


class RunServers:
    """A context manager that holds what was started.

    Args:
        holds_device: Whether a device waits with this process: then one is patient with a server for half of its
            `grace` only; the other half is for saving.
    """

    def __init__(self, recipe: Recipe, holds_device: bool = False):
        self._recipe = recipe
        self._holds_device = holds_device
        self._started = ExitStack()
        self._local: dict[str, str] = {}

    def __enter__(self) -> "RunServers":
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def environment(self, name: str) -> EnvironmentServer:
        """The recipe's server for its own environment, a guard rail's for another one. Raises Stop where it
        cannot be started here."""
        server = self._recipe.server_of(name)
        if not (mixed := self._recipe.mixed_in(name)):
            return self._running(name, server)
        like = server.model_copy(update={"parts": {}})
        parts = {part: self._running(part, server.parts.get(part, like)) for part in mixed}
        return server.model_copy(update={"url": ", ".join(part.url for part in parts.values()), "parts": parts})

    def _running(self, name: str, server: EnvironmentServer) -> EnvironmentServer:
        """Started here where it is nowhere else, once for all who play in it."""
        if not server.url:
            if name not in self._local:
                self._local[name] = self._start(name, server)
            server = server.at(self._local[name])
        return self.with_short_timeouts(server) if self._holds_device else server

    @staticmethod
    def with_short_timeouts(server: EnvironmentServer) -> EnvironmentServer:
        """Half of the grace is for noticing and waiting, also with a server that hangs; the rest is for saving."""
        noticed = min(server.message_timeout, server.grace / 4)
        return server.model_copy(update={"patience": server.grace / 4, "message_timeout": noticed})

    def teacher(self) -> str | None:
        if self._recipe.teacher.scripted_error_rate is None:
            return self._recipe.teacher.base_url
        return self._scripted_teacher

    def _start(self, name: str, server: EnvironmentServer) -> str:
        recipe = self._recipe
        grpo = recipe.grpo.sessions() * recipe.grpo.processes
        sessions = 2 * max(recipe.server.sessions, recipe.evaluate.batch_size, grpo)
        return self._started.enter_context(environment_server(name, server, sessions, announce.say))

    @cached_property
    def _scripted_teacher(self) -> str:
        task = self._recipe.environment
        url = self._started.enter_context(
            local_server(
                "apprentice.envs.serving.scripted_teacher",
                *("--environment", task.name, "--settings", json.dumps(task.settings)),
                *("--error-rate", str(self._recipe.teacher.scripted_error_rate)),
            )
        )
        return f"{url}/v1"


@contextmanager
def environment_server(
    name: str, server: EnvironmentServer, sessions: int, say: Callable[[str], None]
) -> Iterator[str]:
    """The server's URL, with room for so many sessions. Raises Stop where it cannot be started here."""
    if server.image:
        say(f"Starting a container of `{server.image}` for {name}.")
        with _contained(server, sessions) as url:
            yield url
        return
    try:
        check_extra(name)
    except ExtraMissing as missing:
        raise Stop(
            f"The environment cannot run here: {missing}", "Or say where it runs: server.url, server.image."
        ) from None
    with local_server("apprentice.envs.serving.serve", name, "--max-sessions", str(sessions)) as url:
        yield url


@contextmanager
def _contained(server: EnvironmentServer, sessions: int) -> Iterator[str]:
    from apprentice.envs.serving.container import (  # OpenEnv's package takes seconds to import
        ContainerFailed,
        container,
    )

    try:
        with container(server.image, sessions, server.patience) as url:
            yield url
    except ContainerFailed as failed:
        raise Stop(
            f"The environment's container failed: {failed}.",
            f"See what it says: docker run --rm --publish 8000:8000 {server.image}. Or use server.url or server.local.",
        ) from failed
