"""Reads from an environment's server what only the server knows, such as the tools of an MCP environment.

In: a recipe, or an environment and its server. Out: the same with complete settings, which are part of every key and
need no connection afterwards. Where a recipe has them already, no server is asked.
"""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session, SessionLost
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import environment_server
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop


def with_discovered_settings(recipe: Recipe) -> Recipe:
    """Return the recipe with complete settings of its environment, its guards and its rungs. Raises Stop."""

    def rungs(ladder: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [completed(recipe.environment.with_settings(each), recipe.server).settings for each in ladder]

    grpo = recipe.grpo
    if grpo is not None:
        grpo = grpo.model_copy(update={"auto_difficulty": rungs(grpo.auto_difficulty)})
    guards = []
    for guard in recipe.guards:
        whole = completed(guard.environment, recipe.server_of(guard.environment.name))
        guards.append(guard.model_copy(update={"environment": whole}))
    changed = {
        "environment": completed(recipe.environment, recipe.server),
        "grpo": grpo,
        "guards": guards,
        "improve": recipe.improve.model_copy(update={"ladder": rungs(recipe.improve.ladder)}),
    }
    return recipe.model_copy(update=changed)


def completed(spec: EnvironmentSpec, server: EnvironmentServer) -> EnvironmentSpec:
    """Return the environment with the settings that its server tells. Raises Stop."""
    if spec.mixed:
        like = server.model_copy(update={"parts": {}})
        parts = {
            label: given | {"settings": completed(spec.mixed[label], server.parts.get(given["name"], like)).settings}
            for label, given in spec.settings["parts"].items()
            if not spec.mixed[label].knows_all()
        }
        return spec.with_settings(spec.settings | {"parts": spec.settings["parts"] | parts}) if parts else spec
    if spec.knows_all():
        return spec
    if server.url:
        return _asked(spec, server)
    with environment_server(spec.name, server, sessions=1, say=announce.say) as url:
        return _asked(spec, server.at(url))


def _asked(spec: EnvironmentSpec, server: EnvironmentServer) -> EnvironmentSpec:
    session = Session(server)
    try:
        settings = environment_class(spec.name)._completed(spec.settings, session)
    except (ValueError, Refused, BadReply, SessionLost) as error:
        cause = " ".join(str(error).split())[:400]
        raise Stop(
            f"{server.url} does not tell what {spec.name} needs: {cause}.",
            "Check its URL and environment.settings; docs/environments.md has both.",
        ) from error
    finally:
        session.close()
    return spec.with_settings(settings)
