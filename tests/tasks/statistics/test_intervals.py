"""Law 8: a rate and a mean have an interval."""

import random

import pytest

from apprentice.tasks.statistics.intervals import clustered_interval, mean_interval, welch_interval, wilson


def test_the_tutorials_result_is_as_uncertain_as_it_is():
    assert wilson(34, 50) == (pytest.approx(0.542, abs=0.001), pytest.approx(0.792, abs=0.001))


def test_a_rate_of_nothing_still_has_an_interval():
    low, high = wilson(0, 400)
    assert low == 0.0
    assert 0.005 < high < 0.015


def test_a_rate_of_means_is_not_taken_for_a_rate_of_successes():
    assert clustered_interval([[1.0], [0.0], [1.0]]) == wilson(2, 3)
    assert clustered_interval([[0.5], [0.5], [0.5]]) == (0.5, 0.5)


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


def test_the_interval_of_two_means_is_welchs_at_95_percent():
    before, after = [0.1, 0.2, 0.3, 0.2, 0.2], [0.6, 0.7, 0.8, 0.7, 0.7]
    interval = welch_interval(before, after)
    assert interval is not None
    half = 2.306 * (2 * 0.005 / 5) ** 0.5  # the t quantile of 8 degrees of freedom; both variances are 0.005
    assert interval == (pytest.approx(0.5 - half, abs=1e-3), pytest.approx(0.5 + half, abs=1e-3))


def test_too_little_gives_no_interval():
    assert welch_interval([0.5], [0.6, 0.7]) is None
    assert welch_interval([0.5, 0.5], [0.5, 0.5]) is None
