"""Law 8: a difference has an interval."""

import random

import pytest

from apprentice.tasks.analysis.comparison import (
    clustered_interval,
    holm,
    mean_interval,
    paired_difference,
    pass_at_k,
    questions_for,
    welch_interval,
    wilson,
)


def test_the_tutorials_result_is_as_uncertain_as_it_is():
    assert wilson(34, 50) == (pytest.approx(0.542, abs=0.001), pytest.approx(0.792, abs=0.001))


def test_a_rate_of_nothing_still_has_an_interval():
    low, high = wilson(0, 400)
    assert low == 0.0
    assert 0.005 < high < 0.015


def test_a_rate_of_means_is_not_taken_for_a_rate_of_successes():
    assert clustered_interval([[1.0], [0.0], [1.0]]) == wilson(2, 3)
    assert clustered_interval([[0.5], [0.5], [0.5]]) == (0.5, 0.5)


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


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_claims():
    rng = random.Random(1)
    hits = 0
    for _ in range(60):
        low, high = mean_interval([float(rng.random() < 0.3) for _ in range(200)])
        hits += low <= 0.3 <= high
    assert hits >= 51, "seed 1"


def test_a_bootstrap_interval_is_as_wide_as_95_percent_are():
    """1.96 standard errors to each side: the normal interval, which it tends to; 90% would be 1.64."""
    rng = random.Random(4)
    values = [rng.gauss(0.0, 1.0) for _ in range(400)]
    mean = sum(values) / 400
    error = (sum((value - mean) ** 2 for value in values) / 399 / 400) ** 0.5
    low, high = mean_interval(values)
    assert (mean - low) / error == pytest.approx(1.96, abs=0.1), "seed 4"
    assert (high - mean) / error == pytest.approx(1.96, abs=0.1), "seed 4"


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


def test_the_interval_of_two_means_is_welchs_at_95_percent():
    before, after = [0.1, 0.2, 0.3, 0.2, 0.2], [0.6, 0.7, 0.8, 0.7, 0.7]
    interval = welch_interval(before, after)
    assert interval is not None
    half = 2.306 * (2 * 0.005 / 5) ** 0.5  # the t quantile of 8 degrees of freedom; both variances are 0.005
    assert interval == (pytest.approx(0.5 - half, abs=1e-3), pytest.approx(0.5 + half, abs=1e-3))


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


def test_pass_at_k_is_the_chance_that_one_of_k_drawn_samples_is_right():
    assert pass_at_k(right=1, samples=4, k=1) == pytest.approx(0.25)
    assert pass_at_k(right=2, samples=4, k=2) == pytest.approx(1 - 1 / 6)
    assert pass_at_k(right=3, samples=4, k=2) == 1.0
    assert pass_at_k(right=0, samples=4, k=4) == 0.0


def test_too_little_gives_no_interval():
    assert welch_interval([0.5], [0.6, 0.7]) is None
    assert welch_interval([0.5, 0.5], [0.5, 0.5]) is None
