"""Reasoning Gym's datasets by name, and the one question that a seed names.

In: dataset, configuration, the parts of a composite one, seed. Out: the entry (question, answer, metadata).
Why: building a dataset anew for every question reads its word lists again (17 ms for spell_backward); a dataset that
was built once gives the same entry for a seed in microseconds, where that is so (checked, not assumed).
"""

import copy
import difflib
import json
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

Specs = Sequence[dict[str, Any]]
"""The parts of a composite dataset: name, weight (1 when left out), config."""

MOST = 10_000
"""Questions of a dataset that one reset may ask for; acre builds them all at once, at 0.6 ms each."""


DRAW_GLOBALLY = {"codeio", "list_functions"}
"""Datasets that draw from Python's or NumPy's common generators, besides their own."""
DRAW_FROM_SETS = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Datasets whose question, or answer, hangs on the order of a set: another one under another PYTHONHASHSEED."""

WITHOUT_AN_ANSWER = {
    "boxnet": "scores the plan that it is given",
    "graph_color": "scores any colouring that holds",
    "propositional_logic": "scores any conclusion that follows",
    "rubiks_cube": "scores any moves that solve the cube",
    "rush_hour": "scores any moves that free the car",
}
"""Datasets that name no answer of their own: they can be played, but not by copying the answer."""

_common = threading.Lock()
_building = threading.Lock()
_ready: set[tuple[str, str, str]] = set()


def check_name(dataset: str) -> None:
    """Raises ValueError, with the nearest known name, for a dataset that Reasoning Gym does not have."""
    import reasoning_gym  # noqa: F401  (fills the register)
    from reasoning_gym.factory import DATASETS

    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see reasoning_gym's gallery"
        raise ValueError(f"unknown Reasoning Gym dataset {dataset!r}; {hint}")


def check(dataset: str, config: dict[str, Any], specs: Specs) -> None:
    """Raises ValueError for a dataset that is not known, or parts that do not fit it."""
    for name in (dataset, *(_named(spec) for spec in specs)):
        check_name(name)
    if dataset != "composite" and specs:
        raise ValueError(f"dataset_specs are for the dataset composite, not for {dataset}")
    if dataset == "composite" and (not specs or config):
        raise ValueError("composite takes dataset_specs, [{name, weight, config}, …], and no configuration of its own")
    if any(_named(spec) == "composite" for spec in specs):
        raise ValueError("a part of composite cannot be composite itself")


def refusal(dataset: str, config: dict[str, Any], specs: Specs) -> str:
    """Why Reasoning Gym does not take a configuration; empty where it does. For a dataset that is known."""
    return _refusal(*_named_by(dataset, config, specs))


@lru_cache(maxsize=64)
def _refusal(dataset: str, config_json: str, specs_json: str) -> str:
    import reasoning_gym.factory

    parts = [(spec["name"], spec.get("config") or {}) for spec in json.loads(specs_json)]
    for name, config in parts or [(dataset, json.loads(config_json))]:
        try:
            made = reasoning_gym.factory.DATASETS[name][1](**config)
            if hasattr(made, "validate"):
                made.validate()
        except ImportError:
            raise  # it is not the configuration that is wrong
        except Exception as error:  # whatever a dataset raises for a configuration of the wrong types
            return " ".join(str(error).split()) or type(error).__name__
    return ""


def entry(dataset: str, config: dict[str, Any], seed: int, specs: Specs = ()) -> tuple[Any, dict[str, Any]]:
    """The dataset (for scoring) and the entry of the question that `seed` names.

    Equal to `reasoning_gym.create_dataset(dataset, seed=seed, size=1, **config)[0]`. Raises what Reasoning Gym raises
    for a configuration that it refuses (AssertionError, TypeError, ValueError).
    """
    with _building:  # many sessions ask for the same one at first
        built, reusable = _built(*_named_by(dataset, config, specs))
    source = _reseeded(built, seed) if reusable else dataset_of(dataset, config, seed, 1, specs)
    return source, item(source, 0, seed, names_of(dataset, specs))


def item(source: Any, place: int, seed: int, names: set[str]) -> dict[str, Any]:
    """The entry at a place of a dataset, which is that of `seed` + place alone.

    `names`: of the dataset and its parts.
    """
    if not names & DRAW_GLOBALLY:
        return source[place]
    with _seeded(seed + place):
        return source[place]


def names_of(dataset: str, specs: Specs) -> set[str]:
    return {dataset, *(_named(spec) for spec in specs)}


def is_ready(dataset: str, config: dict[str, Any], specs: Specs) -> bool:
    """Whether a question costs microseconds; else it may take seconds, and is not for a server's loop."""
    return _named_by(dataset, config, specs) in _ready and not names_of(dataset, specs) & DRAW_GLOBALLY


def check_hashing(dataset: str, specs: Specs) -> None:
    """Raises ValueError where this process would ask another question under the same seed than another one."""
    if sys.flags.hash_randomization and (unsteady := sorted(names_of(dataset, specs) & DRAW_FROM_SETS)):
        raise ValueError(f"{unsteady[0]} draws from sets; start this server with PYTHONHASHSEED=0, or it serves others")


def _named_by(dataset: str, config: dict[str, Any], specs: Specs) -> tuple[str, str, str]:
    return dataset, json.dumps(config, sort_keys=True), json.dumps(specs, sort_keys=True)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The common generators begin with `seed`, and are left as they were."""
    import numpy

    with _common:
        python, other = random.getstate(), numpy.random.get_state()
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(other)


def dataset_of(dataset: str, config: dict[str, Any], seed: int, size: int, specs: Specs = ()) -> Any:
    """The dataset, built anew. Raises as `entry`."""
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec

    if not specs:
        return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **config)
    parts = [DatasetSpec(_named(spec), spec.get("weight", 1), spec.get("config") or {}) for spec in specs]
    return reasoning_gym.create_dataset(dataset, seed=seed, size=size, datasets=parts)


def _named(spec: Any) -> str:
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise ValueError(f"a part of composite names its dataset: {{name, weight, config}}, not {spec!r}")
    return spec["name"]


def _reseeded(built: Any, seed: int) -> Any:
    twin = copy.copy(built)
    twin.seed = seed
    twin.config = copy.copy(built.config)
    twin.config.seed = seed
    if hasattr(built, "dataset_names"):  # composite: its parts have seeds of their own, counted on from its
        twin.datasets = {
            spec.name: part if "seed" in spec.config else _reseeded(part, seed + place)
            for place, (spec, part) in enumerate(zip(built.config.datasets, built.datasets.values(), strict=True), 1)
        }
    return twin


@lru_cache(maxsize=64)
def _built(dataset: str, config_json: str, specs_json: str) -> tuple[Any, bool]:
    """A built dataset, and whether another seed on it gives what a dataset built with that seed gives.

    A composite's parts are each asked alone: a few seeds may never draw one of little weight.
    """
    config, specs = json.loads(config_json), json.loads(specs_json)
    built, names = dataset_of(dataset, config, 0, 1, specs), names_of(dataset, specs)
    alone = [(spec["name"], json.dumps(spec.get("config") or {}, sort_keys=True)) for spec in specs]
    probes = (1, 12_345, 200_000_007)
    reusable = all(_reusable(*each) for each in alone) and all(
        item(_reseeded(built, seed), 0, seed, names)
        == item(dataset_of(dataset, config, seed, 1, specs), 0, seed, names)
        for seed in probes
    )
    if reusable:
        _ready.add((dataset, config_json, specs_json))
    return built, reusable


def _reusable(dataset: str, config_json: str) -> bool:
    config = {name: value for name, value in json.loads(config_json).items() if name not in ("seed", "size")}
    return _built(dataset, json.dumps(config, sort_keys=True), "[]")[1]
