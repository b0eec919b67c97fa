"""Law 8: a difference has an interval."""

import random

import pytest

from apprentice.tasks.statistics import mean_interval, paired_difference, welch_interval, wilson


def test_the_tutorials_result_is_as_uncertain_as_it_is():
    assert wilson(34, 50) == (pytest.approx(0.542, abs=0.001), pytest.approx(0.792, abs=0.001))


def test_a_rate_of_nothing_still_has_an_interval():
    low, high = wilson(0, 400)
    assert low == 0.0
    assert 0.005 < high < 0.015


def test_a_paired_difference_counts_only_the_questions_that_changed():
    before = [True] * 50 + [False] * 50
    after = [True] * 45 + [False] * 5 + [True] * 20 + [False] * 30
    result = paired_difference(before, after)
    assert result["delta_accuracy"] == pytest.approx(0.15)
    assert (result["won"], result["lost"]) == (20, 5)
    assert result["p_value"] == pytest.approx(0.00408, abs=1e-4)  # binomial test of 5 in 25
    assert 0.04 < result["ci"][0] < 0.15 < result["ci"][1] < 0.26


def test_equal_models_show_no_difference():
    same = [True, False] * 40
    assert paired_difference(same, same) == {
        "delta_accuracy": 0.0,
        "ci": (0.0, 0.0),
        "p_value": 1.0,
        "won": 0,
        "lost": 0,
    }


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_claims():
    rng = random.Random(1)
    hits = 0
    for _ in range(60):
        low, high = mean_interval([float(rng.random() < 0.3) for _ in range(200)])
        hits += low <= 0.3 <= high
    assert hits >= 51, "seed 1"


def test_too_little_gives_no_interval():
    assert welch_interval([0.5], [0.6, 0.7]) is None
    assert welch_interval([0.5, 0.5], [0.5, 0.5]) is None
