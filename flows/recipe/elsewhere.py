"""A recipe for processes that run in other folders, such as a worker's: its paths are absolute, or it is refused.

In: a recipe, `--set` options. Out: the same with whole paths, and which those are. Raises Stop.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.paths import HOME, Absolute
from apprentice.envs.wire.passing import leaves
from apprentice.flows.recipe.loading import class_in
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import CollectSpec

PASSING = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders that are each machine's own, and emptied."""


def elsewhere(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's parameters with absolute paths. Raises Stop for a path that cannot be made absolute."""
    whole = recipe.as_parameters(Absolute())
    rows = recipe.collect.dataset
    if rows and rows.revision is None and not os.path.isabs(whole[CollectSpec.section]["dataset"]["path"]):
        raise Stop(
            f"There is no file or folder {Path(rows.path).absolute()}, and a dataset of the Hub has a commit.",
            "Check collect.dataset.path, or add its `revision`.",
        )
    specs = {f"guards.{index}.environment": regression.environment for index, regression in enumerate(recipe.guards)}
    specs["environment"] = recipe.environment
    for where, value in [*_texts(whole), *(each for at, spec in specs.items() for each in _path_settings(at, spec))]:
        if not os.path.isabs(value):
            raise Stop(
                f"{where} is {value!r}, a path that a worker would look for in a folder of its own.",
                f"Write the whole path, such as {os.path.abspath(os.path.expanduser(value))}.",
            )
    return whole


def overrides_elsewhere(recipe: Recipe, overrides: Sequence[str]) -> list[str]:
    """Return the options with absolute paths, given the recipe that they led to. Raises Stop."""
    found = Absolute()
    recipe.as_parameters(found)
    whole, written = elsewhere(recipe), []
    for override in overrides:
        path, _, text = override.partition("=")
        value: Any = whole
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        has_path = text.strip() and any(each in found for _, each in leaves(value))
        written.append(f"{path}={json.dumps(value, ensure_ascii=False)}" if has_path else override)
    return written


def paths_needed(recipe: Recipe) -> list[str]:
    """Return what to say of the paths that other machines read."""
    found = Absolute()
    recipe.as_parameters(found)
    own = set(found) - ({str(recipe.store.path.absolute())} if recipe.store.hub else set())  # a cache, each one's own
    if not own:
        return []
    said = [f"Its workers read {', '.join(sorted(own))}: on another machine, these must be the same files."]
    passing = sorted(path for path in own if any(Path(path).is_relative_to(each) for each in PASSING))
    return said + [f"{path} is in a folder for temporary files, which no other machine sees." for path in passing]


def _texts(recipe: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts that are relative paths: by how they begin, or because there is such a file here."""
    for where, value in leaves(recipe):
        if not isinstance(value, str) or os.path.isabs(value):
            continue
        like_one = value.startswith(("./", "../")) or value in (".", "..") or HOME.match(value)
        if like_one or ((os.sep in value or Path(value).suffix) and len(value) < 256 and os.path.isfile(value)):
            yield where, value


def _path_settings(where: str, spec: EnvironmentSpec) -> Iterator[tuple[str, str]]:
    """Yield the settings whose type is a path."""
    for label, each in spec.mixed.items():
        yield from _path_settings(f"{where}.settings.parts.{label}", each)
    for name, field in environment_class(spec.name).Settings.model_fields.items():
        if class_in(field.annotation, Path) and isinstance(value := spec.settings.get(name), str | Path):
            yield f"{where}.settings.{name}", str(value)
