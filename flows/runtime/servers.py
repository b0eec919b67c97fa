"""The servers of a run: started when a stage first needs them, stopped when the run ends.

In: a recipe. Out: URLs. A run of cache hits starts nothing. A URL in the recipe is used unchanged, an image becomes a
container, anything else a child process.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

from apprentice.envs.catalog import ExtraMissing, NoServer, check_server
from apprentice.envs.serving.container import PORT, USER, ContainerFailed, container
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop


class RunServers:
    """A context manager that stops the servers it started.

    Args:
        holds_device: Whether this process holds a GPU: outages are then waited for only half of the server's `grace`;
            the other half is for saving.
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
        """Return the server of the recipe's environment or of a guard rail's. Raises Stop if it cannot be started."""
        server = self._recipe.server_of(name)
        if not (mixed := self._recipe.mixed_in(name)):
            return self._running(name, server)
        like = server.model_copy(update={"parts": {}})
        parts = {part: self._running(part, server.parts.get(part, like)) for part in mixed}
        return server.model_copy(update={"url": ", ".join(part.url for part in parts.values()), "parts": parts})

    def _running(self, name: str, server: EnvironmentServer) -> EnvironmentServer:
        if not server.url:
            if name not in self._local:
                self._local[name] = self._start(name, server)
            server = server.at(self._local[name])
        return self.with_short_timeouts(server) if self._holds_device else server

    @staticmethod
    def with_short_timeouts(server: EnvironmentServer) -> EnvironmentServer:
        """Return the server with timeouts that take half of `grace`, even if it hangs; the rest is for saving."""
        timeout = min(server.message_timeout, server.grace / 4)
        return server.model_copy(update={"patience": server.grace / 4, "message_timeout": timeout})

    def teacher(self) -> str | None:
        if self._recipe.is_scripted:
            return self._scripted_teacher
        return self._recipe.teacher.base_url if self._recipe.teacher else None

    def _start(self, name: str, server: EnvironmentServer) -> str:
        recipe = self._recipe
        sessions = 2 * max(recipe.server.sessions, recipe.evaluate.batch_size, recipe.grpo_sessions())
        return self._started.enter_context(environment_server(name, server, sessions, announce.say))

    @cached_property
    def _scripted_teacher(self) -> str:
        task, teacher = self._recipe.environment, self._recipe.teacher
        assert teacher is not None
        url = self._started.enter_context(
            local_server(
                "apprentice.envs.serving.scripted_teacher",
                *("--environment", task.name, "--settings", json.dumps(task.settings)),
                *("--error-rate", str(teacher.scripted_error_rate)),
            )
        )
        return f"{url}/v1"


@contextmanager
def environment_server(
    name: str, server: EnvironmentServer, sessions: int, say: Callable[[str], None]
) -> Iterator[str]:
    """Start a server with this many sessions and yield its URL. Raises Stop if it cannot be started here."""
    if server.image:
        say(f"Starting a container of `{server.image}` for {name}.")
        with _container(server, sessions) as url:
            yield url
        return
    try:
        check_server(name)
    except NoServer as none:
        raise Stop(f"{none}.", "Name a server that runs: server: {url: https://…}.") from None
    except ExtraMissing as missing:
        raise Stop(f"The environment cannot run here: {missing}", "Or set server.url or server.image.") from None
    with local_server("apprentice.envs.serving.serve", name, "--max-sessions", str(sessions)) as url:
        yield url


@contextmanager
def _container(server: EnvironmentServer, sessions: int) -> Iterator[str]:
    try:
        with container(server.image, sessions, server.patience) as url:
            yield url
    except ContainerFailed as failed:
        raise Stop(
            f"The environment's container failed: {failed}.",
            f"See its output: docker run --rm --user {USER} --publish 127.0.0.1:{PORT}:{PORT} {server.image}. "
            "Or set server.url or server.local.",
        ) from failed
