"""A change of the recipe that did not help is read from the runs before and after it."""

from typing import Any

import pytest

from apprentice.tasks.advice.attempts import Attempt, changed_field, in_vain

RECIPE: dict[str, Any] = {
    "seed": 0,
    "student": {"build": {"hidden_size": 32, "intermediate_size": 64}, "model": None},
    "sft": {"epochs": 8, "learning_rate": 1e-3},
    "windows": {"evaluate": {"size": 60}, "collect": {"size": 60}},
    "evaluate": {"questions": 60},
}


def changed(**values: Any) -> dict[str, Any]:
    """The recipe with other values at paths written with two underscores."""
    made = RECIPE | {name: dict(each) for name, each in RECIPE.items() if isinstance(each, dict)}
    for path, value in values.items():
        *parents, last = path.split("__")
        section = made
        for name in parents:
            section[name] = dict(section[name])
            section = section[name]
        section[last] = value
    return made


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"sft__epochs": 32}, "sft.epochs"),
        ({"sft__epochs": 32, "seed": 1}, ""),
        ({}, ""),
        ({"student__build__hidden_size": 64, "student__build__intermediate_size": 128}, "student.build.hidden_size"),
        ({"evaluate__questions": 90, "windows__evaluate__size": 90}, "evaluate.questions"),
        ({"student__build": None, "student__model": "m", "sft__epochs": 4}, "student"),
        ({"student__build": None, "student__model": "m", "windows__collect__size": 4}, ""),
    ],
)
def test_a_change_has_a_name_where_it_is_one(values: dict, field: str):
    assert changed_field(RECIPE, changed(**values)) == field


def test_only_a_change_without_a_better_model_was_in_vain():
    first, better = Attempt(RECIPE, 0.1, 0.15), Attempt(changed(sft__epochs=32), 0.4, 0.45)
    assert in_vain([first], better) == set()
    more_rows = Attempt(changed(sft__epochs=32, windows__collect__size=240), 0.42, 0.47)
    assert in_vain([first, better], more_rows) == {"windows.collect.size"}
    assert in_vain([first, better, more_rows], more_rows) == {"windows.collect.size"}


def test_the_way_back_is_no_attempt():
    worse = Attempt(changed(sft__epochs=2), 0.0, 0.05)
    assert in_vain([worse], Attempt(RECIPE, 0.1, 0.15)) == set()
