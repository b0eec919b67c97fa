"""Starts the server of an environment that names none that runs: an image's container, or our own child process.

In: a recipe's section `env`. Out: a URL while the `with` block lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apprentice.envs.catalog import ExtraMissing, check_extra
from apprentice.envs.process import local_server
from apprentice.envs.server import EnvironmentServer
from apprentice.tasks.errors import Stop


@contextmanager
def started(name: str, server: EnvironmentServer, sessions: int, say: Callable[[str], None]) -> Iterator[str]:
    """The server's URL, with room for so many sessions. Raises Stop where it cannot be started here."""
    if server.image:
        say(f"Starting a container of `{server.image}` for {name}.")
        with _contained(server, sessions) as url:
            yield url
        return
    try:
        check_extra(name)
    except ExtraMissing as missing:
        raise Stop(f"The environment cannot run here: {missing}", "Or say where it runs: env.url, env.image.") from None
    with local_server("apprentice.envs.serving", name, "--max-sessions", str(sessions)) as url:
        yield url


@contextmanager
def _contained(server: EnvironmentServer, sessions: int) -> Iterator[str]:
    from apprentice.envs.container import ContainerFailed, container  # OpenEnv's package takes seconds to import

    try:
        with container(server.image, sessions, server.patience) as url:
            yield url
    except ContainerFailed as failed:
        raise Stop(
            f"The environment's container failed: {failed}.",
            f"See what it says: docker run --rm --publish 8000:8000 {server.image}. Or do without: env.url, env.local.",
        ) from failed
