"""The levels of Reasoning Gym's own curricula, as difficulty levels of a training.

In: which levels of which datasets, the datasets that are played. Out: the settings of each level, by label.
"""

import difflib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.defaults import failed_import
from apprentice.envs.reasoning_gym import datasets

LEAST = 2
"""Levels below which a dataset has nothing to choose from."""


def datasets_with_levels() -> list[str]:
    """Every dataset that ships a curriculum, also where that does not work."""
    import reasoning_gym  # noqa: F401  (fills the register)
    from reasoning_gym.factory import CURRICULA

    return sorted(CURRICULA)


def levels_of(names: str | tuple[str, ...], most: int, played: list[EnvironmentSpec]) -> dict[str, dict[str, Any]]:
    """The settings of the first `most` levels of each dataset, by label: of `all`, of those that are named, or of its
    `own`, which are those that are `played`, of composite ones their parts. Raises ValueError as `levels_by_label`."""
    if names == "all":
        return all_levels(most)
    if names != "own":
        return levels_by_label(names, most)
    parts = [own.settings.get("dataset_specs") or [{"name": own.settings["dataset"]}] for own in played]
    return levels_by_label(dict.fromkeys(each["name"] for some in parts for each in some), most)


def levels_by_label(names: Iterable[str], most: int) -> dict[str, dict[str, Any]]:
    """The settings of the first `most` levels of some datasets, by label, such as chain-sum-1. Raises ValueError with
    all datasets that have fewer than two levels."""
    tried = {name: _tried(name, most) for name in names}
    if wrong := [refused for found, refused in tried.values() if len(found) < LEAST]:
        raise ValueError("; ".join(wrong))
    return {
        f"{name.replace('_', '-')}-{level}": {"dataset": name, "config": json.loads(config)}
        for name, (found, _) in tried.items()
        for level, config in enumerate(found, 1)
    }


def all_levels(most: int) -> dict[str, dict[str, Any]]:
    """The settings of the levels of every dataset that has at least two."""
    return levels_by_label((name for name in datasets_with_levels() if len(_tried(name, most)[0]) >= LEAST), most)


@cache
def _tried(dataset: str, most: int) -> tuple[list[str], str]:
    """The levels up to the first one that fails, as JSON, and why that fails."""
    from reasoning_gym.factory import create_curriculum

    if dataset not in datasets_with_levels():
        near = difflib.get_close_matches(dataset, datasets_with_levels(), n=1)
        return [], f"{dataset} has no curriculum in Reasoning Gym" + (f"; did you mean {near[0]!r}?" if near else "")
    curriculum, found = create_curriculum(dataset), []
    while len(found) < most:
        config = ""
        try:
            made = curriculum.generate_configuration()
            config = json.dumps({name: getattr(made, name) for name in _fields(curriculum)}, sort_keys=True)
            refused = datasets.refusal(dataset, json.loads(config), ())
            refused = refused or ("it is as the level before" if config in found else "")
            if not refused:
                _ = datasets.dataset_of(dataset, json.loads(config), 0, 1)[0]["question"]
        except Exception as error:  # whatever a curriculum or a dataset raises
            if failed_import(error):
                raise
            refused = " ".join(str(error).split()) or type(error).__name__
        if refused:
            return found, f"{dataset} fails at level {len(found)} of its curriculum: {refused}"
        found.append(config)
        if not curriculum.increment_global_level():
            return found, f"{dataset} has {len(found)} level"
    return found, ""


def _fields(curriculum: Any) -> list[str]:
    """The names of the options that a curriculum sets."""
    names = ("field_name", "lower_field_name", "upper_field_name")
    return [getattr(each, name) for each in curriculum.attributes.values() for name in names if hasattr(each, name)]
