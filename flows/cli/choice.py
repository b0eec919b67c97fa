"""Resolves the arguments of `env audit`, `env check` and `env play` to an environment, its settings and its server.

In: a name, a recipe, settings, a URL, as typed. Out: an `EnvironmentSpec` and an `EnvironmentServer`; what an audit
looks at.

`apprentice env list`: each environment's tools, turns, reward streams, extra and recipes.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from apprentice.envs.base import tool_names
from apprentice.envs.catalog import (
    ANY,
    OLD,
    EnvironmentSpec,
    ExtraMissing,
    add_folder,
    check_extra,
    described,
    environment_class,
    known,
)
from apprentice.envs.player import Player, TextCall
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import openers
from apprentice.flows.audit.connection import answers, known_as
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.recipe.loading import explain, explained, load_recipe, override_field, read_file
from apprentice.flows.recipe.location import RECIPES, recipe_file
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import completed, environment_server
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.streams import Stream, streams_of_parts


def catalogue() -> list[dict[str, Any]]:
    """Return every environment, for JSON."""
    return [_entry(name) for name in known() if name not in OLD]


def _entry(name: str) -> dict[str, Any]:
    player, cls = _example(name), environment_class(name)
    parts = player.parts() if player else []
    tools = [tool.name for part in parts for tool in part.tools] if player else tool_names(cls)
    streams = streams_of_parts(parts) if player else [Stream("", *each) for each in cls.streams.items()]
    recipes = recipes_of(name)
    mixed = (_read(path)["environment"].get("settings", {}).get("parts", {}) for path in recipes)
    needed = {name, *(part["name"] for parts in mixed for part in parts.values())}
    return {
        "name": name,
        "what": described(name),
        "tools": tools,
        "turns": player.max_turns if player else None,
        "streams": {stream.called: stream.weight for stream in streams},
        "extras": sorted({environment_class(each).extra[0] for each in needed} - {""}),
        "installed": all(map(is_installed, needed)),
        "recipe": _one_of(recipes, name, laptop=False),
        "laptop": _one_of(recipes, name, laptop=True),
        "recipes": [path.stem for path in recipes],
    }


def rows() -> list[dict[str, str]]:
    """Return every environment, as table rows."""
    return [
        {
            "environment": f"{each['name']}: {each['what']}{_extra(each)}",
            "tools": "\n".join(each["tools"]),
            "turns": str(each["turns"] or "–"),
            "rewards": "\n".join(_weighed(name, weight) for name, weight in each["streams"].items()),
            "recipes": "\n".join(each[kind] or "–" for kind in ("recipe", "laptop")),
        }
        for each in catalogue()
    ]


def settings_from_a_recipe(name: str) -> tuple[dict[str, Any], str]:
    """Return an environment's default settings, or those of a recipe and its name if some have no default.

    Raises ValidationError if there are neither defaults nor a recipe.
    """
    cls = environment_class(name)
    try:
        cls.Settings.model_validate({})
        return {}, ""
    except ValidationError:
        for path in sorted(recipes_of(name), key=lambda path: "laptop" not in path.stem):
            return _read(path)["environment"].get("settings", {}), path.stem
        raise


def is_installed(name: str) -> bool:
    with suppress(ExtraMissing):
        check_extra(name)
        return True
    return False


def recipes_of(name: str) -> list[Path]:
    """Return the recipes that train in an environment, sorted by name."""
    return [path for path in sorted(RECIPES.glob("*.yaml")) if _read(path)["environment"].get("name") == name]


@cache
def _read(path: Path) -> dict[str, Any]:
    return read_file(path)[0]


def _one_of(recipes: list[Path], name: str, laptop: bool) -> str | None:
    fitting = [path for path in recipes if bool(_read(path).get("student", {}).get("build")) == laptop]
    fitting.sort(key=lambda path: (name not in path.stem.replace("-", "_"), "laptop" not in path.stem))
    return fitting[0].stem if fitting else None


def _example(name: str) -> Player | None:
    """Return a player under default settings or a recipe's; None if there are neither."""
    try:
        return EnvironmentSpec(name=name, settings=settings_from_a_recipe(name)[0]).make()
    except ValidationError:
        return None


def _weighed(stream: str, weight: float) -> str:
    called = "reward" if stream == Stream().name else stream
    return called if weight == 1 else f"{called} × {weight:g}"


def _extra(entry: dict[str, Any]) -> str:
    if not entry["extras"]:
        return ""
    return f". Extra: {', '.join(entry['extras'])}{'' if entry['installed'] else ' (not installed)'}"


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
    first = next(iter(known.model_fields), "name")
    remedy = f"Change them with --set, such as --set {first}=…, or take a recipe's with --recipe."
    with explained(f"These settings are not valid for {name}", remedy, known):
        if settings is None and not overrides:
            settings, source = settings_from_a_recipe(name)
        changed: dict[str, Any] = {"settings": dict(settings or {})}
        for each in overrides or []:
            override_field(changed, f"settings.{each}")
        known.model_validate(changed["settings"])
    spec = EnvironmentSpec(name=name, settings=changed["settings"])
    return spec, f"Using the settings of the recipe {source}." if source else ""


def settings_given(overrides: list[str] | None) -> dict[str, Any]:
    """Return settings of the adapter that a user gives as NAME=VALUE, with the rows of a file of tasks; `say`, which
    stands beside them in a recipe, is among them. Raises Stop."""
    own: list[str] = []
    say: dict[str, Any] = {}
    for each in overrides or []:
        if re.match(r"say[.=]", each):
            override_field(say, each)
        else:
            own.append(each)
    spec, _ = environment_of(ANY, {}, own)
    with explained("say is not valid", "Such as --set say.tool=respond.", TextCall):
        return spec.settings | {name: TextCall.model_validate(value).model_dump() for name, value in say.items()}


def recipe_at(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Return a recipe for its environments and sizes only. Raises Stop."""
    path = recipe_file(path)
    student = read_file(path)[0].get("student")
    if isinstance(student, dict) and student.get("model") and not student.get("revision"):
        overrides = ["student.revision=any", *(overrides or [])]  # the commit does not matter here
    return load_recipe(path, overrides or [])


def in_recipe(recipe: Recipe, name: str) -> tuple[EnvironmentSpec, EnvironmentServer]:
    """Return an environment of a recipe, of its regression evaluations or of its mixture, with its server.

    Raises Stop if the recipe has no environment of that name.
    """
    for spec in (recipe.environment, *(regression.environment for regression in recipe.guards)):
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


IMAGE = re.compile(r"(?:[\w.:-]+/)+[\w.-]+[:@][\w.:-]+|[a-z][\w.-]*:[\w.-]*[A-Za-z][\w.-]*")
"""A Docker image with its tag or digest; name:8000 without a slash is a host and its port."""


def sessions_for(recipe: Path | None, overrides: list[str] | None, quick: bool) -> int:
    """Return with how many sessions an environment is served here for an audit: a recipe's, or enough to see load.

    Raises Stop.
    """
    if recipe is None:
        return EnvironmentServer().sessions if quick else 16
    return max(Needs.of(recipe_at(recipe, overrides)))


@contextmanager
def reachable(given: str, sessions: int) -> Iterator[tuple[str, str | None]]:
    """Yield the URL of a server, and the name of its environment where that was given in place of a URL, or its folder:
    it is then served here, with this many sessions, while the block runs. An image is run in a container. Raises
    Stop."""
    if IMAGE.fullmatch(given) and not Path(given).exists():
        with environment_server(given, EnvironmentServer(image=given), sessions, announce.say) as (url,):
            yield url, None
        return
    if given not in known() and not _is_folder(given):
        yield given, None
        return
    name = name_of(given)
    settings_class(name)
    with environment_server(name, EnvironmentServer(), sessions, announce.say) as (url,):
        yield url, name


def chosen_for(
    url: str, name: str | None, recipe: Path | None, overrides: list[str] | None, sessions: int, served_here: bool
) -> Subject:
    """Return server, environment and needs; without a recipe that many sessions.

    Raises Stop if the arguments conflict or the environment is unknown.
    """
    whole = None
    if recipe is not None:
        whole = recipe_at(recipe, overrides)
        spec, server = in_recipe(whole, name or whole.environment.name)
        server, needs = server_at(url, like=server), Needs.of(whole)
    elif overrides:
        raise Stop("--set changes a recipe, and none is given.", "Pass it with --recipe.")
    else:
        server = server_at(url)
        spec, _ = environment_of(name or _named_by(server))
        needs = Needs(0, 0, sessions)
    if mixed := sorted({part.name for part in spec.mixed.values()}):
        raise Stop(
            f"{spec} is a mixture, and each of its environments has a server: {', '.join(mixed)}.",
            f"Choose one: --environment {mixed[0]}",
        )
    spec = completed(spec, server)
    elsewhere, original = openers(spec, served_here)
    seeds = whole.seed_windows().collect.seeds()[:5] if whole else range(5)
    return Subject(server, spec, needs, seeds, recipe=whole, elsewhere=elsewhere, original=original)


def _named_by(server: EnvironmentServer) -> str:
    """Return the environment that plays a server: one of this project's, by the server's own name, or the adapter."""
    if (name := known_as(metadata_of(server).name)) is not None:
        return name
    trouble = answers(server)
    if trouble.status == "failed":
        raise Stop(f"{server.url}: {trouble.found}.", trouble.remedy)
    return ANY
