"""Law 8: a difference has an interval. All gates together spend no more than one gate would."""

import random

import pytest

from apprentice.tasks.statistics.differences import holm, level_of, paired_difference, questions_for
from apprentice.tasks.statistics.intervals import LEVEL

BEFORE = [1] * 50 + [0] * 50
AFTER = [1] * 45 + [0] * 5 + [1] * 20 + [0] * 30


def test_a_paired_difference_counts_only_the_questions_that_changed():
    result = paired_difference(BEFORE, AFTER)
    assert result["delta"] == pytest.approx(0.15)
    assert (result["won"], result["lost"]) == (20, 5)
    assert result["test"] == "McNemar, exact"
    assert result["p_value"] == pytest.approx(0.00408, abs=1e-4)  # binomial test of 5 in 25
    assert 0.04 < result["ci"][0] < 0.15 < result["ci"][1] < 0.26


def test_equal_models_show_no_difference():
    same = [1, 0] * 40
    result = paired_difference(same, same)
    assert (result["delta"], result["ci"], result["p_value"]) == (0.0, (0.0, 0.0), 1.0)
    assert result["questions_for_5_points"] is None


def test_scores_that_are_no_successes_are_tested_by_flipping_signs():
    rng = random.Random(2)
    before = [rng.random() for _ in range(60)]
    noise = [value + rng.gauss(0, 0.2) for value in before]
    better = [value + 0.15 for value in noise]
    assert paired_difference(before, better)["test"] == "paired permutation"
    assert paired_difference(before, better)["p_value"] < 0.001, "seed 2"
    assert paired_difference(before, noise)["p_value"] > 0.05, "seed 2"


def test_a_permutation_test_has_two_sides():
    """A fall is as improbable as a rise, and as improbable as a t test finds it."""
    from scipy.stats import ttest_rel

    rng = random.Random(5)
    before = [rng.random() for _ in range(80)]
    after = [value + rng.gauss(0.06, 0.2) for value in before]
    rise, fall = (paired_difference(*pair)["p_value"] for pair in ((before, after), (after, before)))
    assert 0.01 < rise < 0.2, "seed 5"
    assert rise == pytest.approx(fall, rel=0.1)
    assert rise == pytest.approx(ttest_rel(after, before).pvalue, rel=0.2)


def test_holm_corrects_for_looking_several_times():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_as_many_questions_as_the_power_says_show_the_difference_four_times_in_five():
    """Two models that disagree on 30% of the questions, 5 points apart: simulated with the number that came out."""
    rng = random.Random(3)

    def differences(n: int) -> list[float]:
        return [1.0 if (draw := rng.random()) < 0.175 else -1.0 if draw < 0.3 else 0.0 for _ in range(n)]

    needed = questions_for(0.05, differences(20_000))
    assert needed is not None
    assert 850 < needed < 1050, "seed 3"
    found = 0
    for _ in range(200):
        seen = differences(needed)
        mean = sum(seen) / needed
        error = (sum((each - mean) ** 2 for each in seen) / (needed - 1) / needed) ** 0.5
        found += mean / error > 1.96
    assert 0.72 < found / 200 < 0.88, "seed 3"


def test_a_spread_too_small_to_go_by_does_not_promise_too_much():
    nearly_equal = [0.0] * 999 + [1.0]
    needed = questions_for(0.05, nearly_equal)
    assert needed is not None
    assert 140 < needed < 170  # what five points of right and wrong answers take at the least
    assert questions_for(0.05, [0.0] * 999 + [0.25]) is None


def test_the_levels_of_many_gates_sum_to_no_more_than_one_gates_level():
    spent = sum(level_of(number) for number in range(1, 20_000))
    assert 0.99 * LEVEL < spent < LEVEL


def test_a_later_gate_is_stricter_and_the_first_one_has_the_published_weight():
    assert level_of(1) == pytest.approx(0.0219, abs=1e-4)  # 0.05 / zeta(1.6)
    assert all(level_of(number + 1) < level_of(number) for number in range(1, 20))
