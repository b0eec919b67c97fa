"""Lists each environment's tools, turns, reward streams, extra and recipes: `apprentice env list`."""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import tool_names
from apprentice.envs.catalog import OLD, EnvironmentSpec, ExtraMissing, check_extra, described, environment_class, known
from apprentice.envs.player import Player
from apprentice.flows.recipe.loading import read_file
from apprentice.flows.recipe.location import RECIPES
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
