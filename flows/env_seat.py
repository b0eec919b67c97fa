"""A place at an environment for a person: its server found or started, and stopped when the person leaves.

In: what `apprentice env play` was given. Out: an environment that can be played while the `with` block lasts.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.pool import sessions_with
from apprentice.envs.server import EnvironmentServer
from apprentice.flows.env_choice import environment_of, in_recipe, recipe_at, server_at, settings_class
from apprentice.flows.started import started
from apprentice.tasks.errors import Stop

SESSIONS = 4
"""Of a server that is started for one player: one, and some for what was lost on the way."""
PATIENCE = 20.0
"""Seconds that a person waits for a server that does not answer."""


@contextmanager
def sit_down(name: str, overrides: list[str] | None, url: str | None, recipe: Path | None) -> Iterator[ToolEnvironment]:
    """The environment under the settings named, or a recipe's, or those that it is known to run with. Raises Stop."""
    settings_class(name)
    settings, server = None, EnvironmentServer()
    if recipe is not None:
        of_the_recipe, server = in_recipe(recipe_at(recipe), name)
        settings = of_the_recipe.settings
    spec, said = environment_of(name, settings, overrides)
    if said:
        print(said)
    if url and spec.mixed:
        raise Stop("A mixture has no server of its own.", "Leave --url out, or name env.parts in a --recipe.")
    if url:
        server = server_at(url, like=server)
    with ExitStack() as stack:

        def running(environment: str, there: EnvironmentServer) -> EnvironmentServer:
            if not there.url:
                there = there.at(stack.enter_context(started(environment, there, SESSIONS, print)))
            return there.model_copy(update={"patience": min(PATIENCE, there.patience)})

        if mixed := sorted({part.name for part in spec.mixed.values()}):
            parts = {each: running(each, server.parts.get(each, EnvironmentServer())) for each in mixed}
            server = server.model_copy(update={"parts": parts})
        else:
            server = running(name, server)
        _, (session,) = sessions_with(server, 1, print, lambda server: nullcontext)
        environment = spec.make(session)
        stack.callback(environment._close)
        yield environment
