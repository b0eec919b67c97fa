"""Resolves the arguments of `env audit`, `env check` and `env play` to an environment, its settings and its server.

In: a name, a recipe, settings, a URL, as typed. Out: an `EnvironmentSpec` and an `EnvironmentServer`; what an audit
looks at; a player with its session.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from apprentice.envs.catalog import ANY, EnvironmentSpec, add_folder, environment_class, known
from apprentice.envs.player import Player, TextCall
from apprentice.envs.pool import sessions_with
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.audit import openers
from apprentice.flows.audit.connection import answers, known_as
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.environment_list import settings_from_a_recipe
from apprentice.flows.recipe.loading import explain, explained, load_recipe, override_field, read_file
from apprentice.flows.recipe.location import recipe_file
from apprentice.flows.recipe.recipe import Recipe
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


SESSIONS = 4
"""Maximum sessions of a server for one player: one, and some spare for lost connections."""
PATIENCE = 20.0
"""Seconds to wait for a server that does not answer."""


@contextmanager
def open_environment(name: str, overrides: list[str] | None, url: str | None, recipe: Path | None) -> Iterator[Player]:
    """Yield the environment with the given settings, a recipe's, or its defaults. Raises Stop."""
    name = name_of(name)
    settings_class(name)
    settings, server = None, EnvironmentServer()
    if recipe is not None:
        of_the_recipe, server = in_recipe(recipe_at(recipe), name)
        settings = of_the_recipe.settings
    spec, message = environment_of(name, settings, overrides)
    if message:
        print(message)
    if url and spec.mixed:
        raise Stop("A mixture has no server of its own.", "Omit --url, or set server.parts in a --recipe.")
    if url:
        server = server_at(url, like=server)
    with ExitStack() as stack:

        def running(environment: str, there: EnvironmentServer) -> EnvironmentServer:
            if not there.url:
                there = there.at(*stack.enter_context(environment_server(environment, there, SESSIONS, print)))
            return there.model_copy(update={"patience": min(PATIENCE, there.patience)})

        if mixed := sorted({part.name for part in spec.mixed.values()}):
            parts = {each: running(each, server.parts.get(each, EnvironmentServer())) for each in mixed}
            server = server.model_copy(update={"parts": parts})
        else:
            server = running(name, server)
            spec = completed(spec, server)
        _, (session,) = sessions_with(server, 1, print, lambda server: nullcontext)
        environment = spec.make(session)
        stack.callback(environment.close)
        yield environment
