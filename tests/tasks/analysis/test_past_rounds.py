"""What a round says of its rung, from its recipe as it was written."""

from typing import Any

import pytest

from apprentice.tasks.analysis.past_rounds import _level


@pytest.mark.parametrize(
    ("recipe", "level"),
    [
        ({"improve": {"ladder": [{"a": 1}, {"a": 2}]}, "environment": {"settings": {"a": 2}}}, "2 of 2"),
        ({"improve": {"ladder": [{"a": 1}, {"a": 2}]}, "environment": {"settings": {"a": 3}}}, "–"),
        ({"improve": {"ladder": None}, "environment": {"settings": {"a": 1}}}, "–"),
        ({"improve": None, "environment": None}, "–"),
        ({}, "–"),
    ],
)
def test_a_rung_is_the_place_of_the_settings_on_the_ladder(recipe: dict[str, Any], level: str):
    assert _level(recipe) == level
