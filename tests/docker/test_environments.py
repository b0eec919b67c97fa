"""The image of an environment, built from what is committed, is played by this project's client."""

from collections.abc import Callable

import pytest

from apprentice.envs.serving.container import container
from tests.scripted import a_task, play

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["echo", "reasoning_gym", "catch"])
def test_the_scripted_policy_plays_an_environments_image_and_is_right(
    name: str, environment_image: Callable[[str], str]
):
    with container(environment_image(name), sessions=2, patience=60) as url:
        episodes = [play(a_task(name), url, seed) for seed in (1, 2)]
    assert [episode.reward for episode in episodes] == [1.0, 1.0]
