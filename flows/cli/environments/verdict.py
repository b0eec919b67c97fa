"""The arguments and the result of `apprentice env check`."""

from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.cli.environments.choice import environment_of, in_recipe, recipe_at, server_at
from apprentice.flows.runtime.environment_check import Checked, Needs, answers, calls_itself, known_as
from apprentice.tasks.reporting.errors import Stop


def chosen_for(
    url: str, name: str | None, recipe: Path | None, overrides: list[str] | None
) -> tuple[EnvironmentServer, EnvironmentSpec, Needs]:
    """Return server, environment and needs. Raises Stop if the arguments conflict or the environment is unknown."""
    chosen = _chosen_for(url, name, recipe, overrides)
    if mixed := sorted({part.name for part in chosen[1].mixed.values()}):
        raise Stop(
            f"{chosen[1]} is a mixture, and each of its environments has a server: {', '.join(mixed)}.",
            f"Choose one: --environment {mixed[0]}",
        )
    return chosen


def _chosen_for(
    url: str, name: str | None, recipe: Path | None, overrides: list[str] | None
) -> tuple[EnvironmentServer, EnvironmentSpec, Needs]:
    if recipe is not None:
        whole = recipe_at(recipe, overrides)
        spec, server = in_recipe(whole, name or whole.environment.name)
        return server_at(url, like=server), spec, Needs.of(whole)
    if overrides:
        raise Stop("--set changes a recipe, and none is given.", "Pass it with --recipe.")
    server = server_at(url)
    if name is None and (name := known_as(calls_itself(server))) is None:
        trouble = answers(server)
        if trouble.verdict == "wrong":
            raise Stop(f"{url}: {trouble.found}.", trouble.fix)
        raise Stop(f"{url} does not report which environment it serves.", "Pass --environment NAME, or --recipe FILE.")
    spec, _ = environment_of(name)
    return server, spec, Needs(0, 0, server.sessions)


def verdict(server: EnvironmentServer, spec: EnvironmentSpec, checked: Checked) -> str:
    if checked.ok:
        slow = [each.what for each in checked.findings if each.verdict == "slower"]
        return f"{server.url} works for {spec}" + (f", with too few {' and '.join(slow)}." if slow else ".")
    wrong = ", ".join(each.what for each in checked.findings if each.verdict == "wrong")
    return f"{server.url} does not work for {spec}: {wrong}."


def as_json(server: EnvironmentServer, spec: EnvironmentSpec, needs: Needs, checked: Checked) -> dict[str, Any]:
    return {
        "ok": checked.ok,
        "url": server.url,
        "environment": spec.name,
        "granted": checked.granted,
        "needed": needs._asdict(),
        "latency_ms": {what: round(each, 2) for what, each in checked.latency_ms.items()},
        "findings": [each._asdict() for each in checked.findings],
    }
