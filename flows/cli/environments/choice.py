"""Resolves the arguments of `env check` and `env play` to an environment, its settings and its server.

In: a name, a recipe, settings, a URL, as typed. Out: an `EnvironmentSpec` and an `EnvironmentServer`; a check's result.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from apprentice.envs.catalog import EnvironmentSpec, add_folder, environment_class, known
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.cli.environments.catalogue import settings_from_a_recipe
from apprentice.flows.recipe.loading import explain, load_recipe, override_field, read_file, recipe_file
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.environment_check import Checked, Needs, answers, calls_itself, known_as
from apprentice.flows.runtime.servers import completed, environment_server
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

ON_THE_HUB = re.compile(r"https?://(?:www\.)?huggingface\.co/spaces/([^/]+)/([^/?#]+)")


def name_of(given: str) -> str:
    """The name of an environment that is named, or whose folder is; the folder is made known. Raises Stop."""
    if given in known() or not _is_folder(given):
        return given
    try:
        name, folder = add_folder(Path(given))
    except ValueError as wrong:
        raise Stop(f"{given} cannot be used: {wrong}.", "Write a new one: apprentice env init NAME") from None
    announce.say(f"This runs the Python code in `{folder}`.")
    return name


def _is_folder(given: str) -> bool:
    return "://" not in given and (Path(given).is_dir() or given.startswith((".", "~")) or os.sep in given)


def settings_class(name: str) -> type[BaseModel]:
    """Return the settings model of an environment. Raises Stop with the nearest known name."""
    try:
        return environment_class(name).Settings
    except ValueError as unknown:
        raise Stop(f"There is no such environment: {unknown}", "List them: apprentice env list") from None


def environment_of(
    name: str, settings: dict[str, Any] | None = None, overrides: list[str] | None = None
) -> tuple[EnvironmentSpec, str]:
    """Return the environment with these settings, its defaults or a recipe's, and a message about a recipe's settings.

    Raises Stop for an unknown name or invalid settings.
    """
    known, source = settings_class(name), ""
    try:
        if settings is None and not overrides:
            settings, source = settings_from_a_recipe(name)
        changed: dict[str, Any] = {"settings": dict(settings or {})}
        for each in overrides or []:
            override_field(changed, f"settings.{each}")
        known.model_validate(changed["settings"])
    except ValidationError as error:
        raise Stop(
            f"These settings are not valid for {name}:\n{explain(error, known)}",
            f"Change them with --set, such as --set {next(iter(known.model_fields), 'name')}=…, or take a recipe's "
            "with --recipe.",
        ) from None
    spec = EnvironmentSpec(name=name, settings=changed["settings"])
    return spec, f"Using the settings of the recipe {source}." if source else ""


def recipe_at(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Return a recipe for its environments and sizes only. Raises Stop."""
    path = recipe_file(path)
    student = read_file(path)[0].get("student")
    if isinstance(student, dict) and student.get("model") and not student.get("revision"):
        overrides = ["student.revision=any", *(overrides or [])]  # the commit does not matter here
    return load_recipe(path, overrides or [])


def in_recipe(recipe: Recipe, name: str) -> tuple[EnvironmentSpec, EnvironmentServer]:
    """Return an environment of a recipe, of its guard rails or of its mixture, with its server.

    Raises Stop if the recipe has no environment of that name.
    """
    for spec in (recipe.environment, *(guard.environment for guard in recipe.guards)):
        if spec.name == name:
            return spec, recipe.server_of(name)
    for part in recipe.environment.mixed.values():
        if part.name == name:
            return part, recipe.server.parts.get(name, recipe.server)
    raise Stop(
        f"The recipe {recipe.name} trains in {recipe.environment.name}, not in {name}.",
        f"Use {recipe.environment.name}, or another recipe.",
    )


def server_at(url: str, like: EnvironmentServer | None = None) -> EnvironmentServer:
    """Return the server at a URL. Raises Stop if the URL is invalid."""
    if page := ON_THE_HUB.match(url):
        host = re.sub(r"[^a-z0-9]+", "-", f"{page[1]}-{page[2]}".lower())
        raise Stop(f"{page[0]} is the Space's page, not its server.", f"Use the server's URL: https://{host}.hf.space")
    known = (like or EnvironmentServer()).model_dump(exclude={"url", "image", "local"})
    try:
        return EnvironmentServer(url=url.rstrip("/"), **known)
    except ValidationError as error:
        raise Stop(
            f"That is not the URL of a server: {explain(error, EnvironmentServer).strip()}.",
            "Use one that begins with http:// or https://.",
        ) from None


@contextmanager
def reachable(given: str) -> Iterator[tuple[str, str | None]]:
    """Yield the URL of a server, and the name of its environment where that was given in place of a URL, or its folder:
    it is then served here while the block runs. Raises Stop."""
    if given not in known() and not _is_folder(given):
        yield given, None
        return
    name = name_of(given)
    settings_class(name)
    with environment_server(name, EnvironmentServer(), EnvironmentServer().sessions, announce.say) as url:
        yield url, name


def chosen_for(
    url: str, name: str | None, recipe: Path | None, overrides: list[str] | None
) -> tuple[EnvironmentServer, EnvironmentSpec, Needs]:
    """Return server, environment and needs. Raises Stop if the arguments conflict or the environment is unknown."""
    if recipe is not None:
        whole = recipe_at(recipe, overrides)
        spec, server = in_recipe(whole, name or whole.environment.name)
        server, needs = server_at(url, like=server), Needs.of(whole)
    elif overrides:
        raise Stop("--set changes a recipe, and none is given.", "Pass it with --recipe.")
    else:
        server = server_at(url)
        spec, _ = environment_of(name or _named_by(server))
        needs = Needs(0, 0, server.sessions)
    if mixed := sorted({part.name for part in spec.mixed.values()}):
        raise Stop(
            f"{spec} is a mixture, and each of its environments has a server: {', '.join(mixed)}.",
            f"Choose one: --environment {mixed[0]}",
        )
    return server, completed(spec, server), needs


def _named_by(server: EnvironmentServer) -> str:
    if (name := known_as(calls_itself(server))) is not None:
        return name
    trouble = answers(server)
    if trouble.verdict == "wrong":
        raise Stop(f"{server.url}: {trouble.found}.", trouble.fix)
    raise Stop(
        f"{server.url} does not report which environment it serves.", "Pass --environment NAME, or --recipe FILE."
    )


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
