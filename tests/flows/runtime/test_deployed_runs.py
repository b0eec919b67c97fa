"""A recipe that is run on a pool is the one that was deployed there."""

from typing import Any

import pytest

from apprentice.flows.runtime import deployed_runs


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, []),
        ({"a": 1, "b": {"c": 2, "d": [1]}}, {"a": 2, "b": {"c": 3, "d": [2]}}, ["a", "b.c", "b.d"]),
        ({"a": None}, {"b": {"c": 1}}, ["a", "b"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a"]),
    ],
)
def test_the_fields_in_which_a_recipe_differs_from_its_deployment(one: Any, other: Any, found: list[str]):
    assert list(deployed_runs._differences(one, other)) == found
