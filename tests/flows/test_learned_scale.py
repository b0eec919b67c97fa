"""Which reward counts as right is learned from the teacher's episodes, where nothing says it."""

from collections.abc import Sequence

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.learned_scale import has_unknown_scale, scale_of


@pytest.mark.parametrize(
    ("rewards", "scale"),
    [
        pytest.param([0.0, 1.0, 1.0, 0.0], None, id="the usual range"),
        pytest.param([0.01, 0.99, 0.99, 0.01], (0.01, 0.99), id="clamped"),
        pytest.param([0.8] * 24, (0.0, 0.8), id="all alike, and high"),
        pytest.param([0.01] * 24, None, id="all alike, and low: the teacher may never be right"),
        pytest.param([-1.0, 1.0, 1.0, -1.0], (-1.0, 1.0), id="penalties"),
        pytest.param([-5.0, 12.0, 12.0, 12.0, 3.0], (-5.0, 12.0), id="the highest is had often"),
        pytest.param([float(each) for each in range(101)], (0.0, 75.0), id="sums, all different: the best quarter"),
        pytest.param([0.5], None, id="one episode"),
        pytest.param([], None, id="none"),
    ],
)
def test_the_scale_follows_from_the_rewards(rewards: Sequence[float], scale: tuple[float, float] | None):
    assert scale_of(rewards) == (pytest.approx(scale) if scale else None)


@pytest.mark.parametrize(("reward", "scale"), [(-1.5, (-2.5, -1.5)), (0.1, (0.0, 0.1)), (0.0, (-1.0, 0.0))])
def test_of_one_task_what_the_teacher_earns_each_time_counts_as_right(reward: float, scale: tuple[float, float]):
    assert scale_of([reward] * 8, is_one_task=True) == scale


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        (EnvironmentSpec(), True),
        (EnvironmentSpec(settings={"reward_range": [0, 1]}), False),
        (EnvironmentSpec(settings={"scale": [0, 5]}), False),
        (EnvironmentSpec(name="echo"), False),
    ],
)
def test_it_is_learned_only_where_neither_the_recipe_nor_the_class_says_it(spec: EnvironmentSpec, unknown: bool):
    assert has_unknown_scale(spec) == unknown
