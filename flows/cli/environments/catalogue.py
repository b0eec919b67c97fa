"""`apprentice env list`: each environment's tools, turns, reward streams, extra and recipes.

In: the catalogue, the package's recipes. Out: table rows, and dictionaries for JSON.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from apprentice.envs.base import ToolEnvironment, tools_of
from apprentice.envs.catalog import ExtraMissing, check_extra, described, environment_class, known
from apprentice.flows.recipe.loading import RECIPES, read_file
from apprentice.tasks.training.rewards import Stream, streams_of_parts


def catalogue() -> list[dict[str, Any]]:
    """Return every environment, for JSON."""
    return [_entry(name) for name in known()]


def _entry(name: str) -> dict[str, Any]:
    environment, cls = _example(name), environment_class(name)
    parts = environment._parts() if environment else [object.__new__(cls)]  # tools and streams are the class's own
    recipes = recipes_of(name)
    needed = {name}.union(*(_mixed_in(path) for path in recipes))
    return {
        "name": name,
        "what": described(name),
        "tools": [tool.__name__ for part in parts for tool in tools_of(part)],
        "turns": environment.max_turns if environment else None,
        "streams": {stream.called: stream.weight for stream in streams_of_parts(parts)},
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
    try:
        check_extra(name)
    except ExtraMissing:
        return False
    return True


def recipes_of(name: str) -> list[Path]:
    """Return the recipes that train in an environment, sorted by name."""
    return [path for path in sorted(RECIPES.glob("*.yaml")) if _read(path)["environment"].get("name") == name]


@cache
def _read(path: Path) -> dict[str, Any]:
    return read_file(path)[0]


def _mixed_in(path: Path) -> set[str]:
    return {part["name"] for part in _read(path)["environment"].get("settings", {}).get("parts", {}).values()}


def _one_of(recipes: list[Path], name: str, laptop: bool) -> str | None:
    fitting = [path for path in recipes if bool(_read(path).get("student", {}).get("build")) == laptop]
    fitting.sort(key=lambda path: (name not in path.stem.replace("-", "_"), "laptop" not in path.stem))
    return fitting[0].stem if fitting else None


def _example(name: str) -> ToolEnvironment | None:
    """Return an instance with default settings or a recipe's; None if there are neither."""
    cls = environment_class(name)
    try:
        return cls(cls.Settings.model_validate(settings_from_a_recipe(name)[0]))
    except ValidationError:
        return None


def _weighed(stream: str, weight: float) -> str:
    called = "reward" if stream == Stream().name else stream
    return called if weight == 1 else f"{called} × {weight:g}"


def _extra(entry: dict[str, Any]) -> str:
    if not entry["extras"]:
        return ""
    return f". Extra: {', '.join(entry['extras'])}{'' if entry['installed'] else ' (not installed)'}"
