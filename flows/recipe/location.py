"""Finds a recipe's file: by its path, or by name, such as `laptop`, among the recipes of this package."""

import difflib
import os
from pathlib import Path

from apprentice.envs.paths import path_from
from apprentice.tasks.reporting.errors import Stop

RECIPES = Path(__file__).resolve().parents[2] / "deployments" / "recipes"
"""The recipes that are installed with this package."""


def given_path(given: str | Path) -> Path:
    """Return a path that a person gave, with the home folder in place of `~`. Raises Stop."""
    try:
        return path_from(given)
    except ValueError as error:
        raise Stop(f"{error}.", "Write the whole path.") from None


def packaged() -> list[str]:
    """Return the names of the recipes that are installed with this package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(given: Path) -> Path | None:
    """Return the file at a path, else `NAME.yaml` here, else the package's recipe of that name; None without any."""
    if os.path.exists(given) and not os.path.isdir(given):  # those of Path raise for what cannot be looked at
        return given
    if _is_name(given):
        return next((path for path in (Path(f"{given}.yaml"), RECIPES / f"{given}.yaml") if path.is_file()), None)
    return None


def recipe_file(given: Path) -> Path:
    """Return the file of a recipe. Raises Stop with the nearest names, and all that there are."""
    found = find_recipe(given)
    if found is not None:
        return found
    if os.path.isdir(given):
        raise Stop(f"{given} is a folder, not a recipe.", "Name a YAML file.")
    here = [str(path) for path in sorted(given.parent.glob("*.yaml")) if path.parent.resolve() != RECIPES]
    near = difflib.get_close_matches(str(given), here, n=1) or difflib.get_close_matches(given.stem, packaged(), n=1)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    files = f"Files in {given.parent.absolute()}: {', '.join(here)}. " if here else ""
    raise Stop(
        f"There is no recipe at {given}." if not _is_name(given) else f"There is no recipe {given}.",
        f"{hint}{files}By name: {', '.join(packaged())}.",
    )


def _is_name(given: Path) -> bool:
    return given.name == str(given) and given.suffix not in (".yaml", ".yml")
