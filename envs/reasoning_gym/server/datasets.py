"""Reasoning Gym's datasets by name, and the one question that a seed names.

In: dataset, configuration, seed. Out: the entry (question, answer, metadata).
Why: building a dataset anew for every question reads its word lists again (17 ms for spell_backward); a dataset that
was built once gives the same entry for a seed in microseconds, where that is so (checked, not assumed).
"""

import copy
import difflib
import json
from functools import lru_cache
from typing import Any


def check_name(dataset: str) -> None:
    """Raises ValueError, with the nearest known name, for a dataset that Reasoning Gym does not have."""
    import reasoning_gym  # noqa: F401  (fills the register)
    from reasoning_gym.factory import DATASETS

    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see reasoning_gym's gallery"
        raise ValueError(f"unknown Reasoning Gym dataset {dataset!r}; {hint}")


def entry(dataset: str, config: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """The dataset (for scoring) and the entry of the question that `seed` names.

    Equal to `reasoning_gym.create_dataset(dataset, seed=seed, size=1, **config)[0]`. Raises what Reasoning Gym raises
    for a configuration that it refuses (AssertionError, TypeError, ValueError).
    """
    built, reusable = _built(dataset, json.dumps(config, sort_keys=True))
    source = _reseeded(built, seed) if reusable else _fresh(dataset, config, seed)
    return source, source[0]


def _fresh(dataset: str, config: dict[str, Any], seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(dataset, seed=seed, size=1, **config)


def _reseeded(built: Any, seed: int) -> Any:
    twin = copy.copy(built)
    twin.seed = seed
    twin.config = copy.copy(built.config)
    twin.config.seed = seed
    return twin


@lru_cache(maxsize=64)
def _built(dataset: str, config_json: str) -> tuple[Any, bool]:
    """A built dataset, and whether another seed on it gives what a dataset built with that seed gives."""
    config = json.loads(config_json)
    built = _fresh(dataset, config, seed=0)
    probes = (1, 12_345, 200_000_007)
    return built, all(_reseeded(built, seed)[0] == _fresh(dataset, config, seed)[0] for seed in probes)
