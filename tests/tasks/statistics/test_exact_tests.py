"""An exact test counts every outcome, so a level of any gate can be reached with enough questions."""

import itertools
import random
from collections.abc import Callable

import pytest

from apprentice.tasks.statistics.differences import level_of, paired_difference
from apprentice.tasks.statistics.exact_tests import cannot_pass, mcnemar, questions_to_reach, sign_flips, smallest_p


def counted(differences: list[float]) -> float:
    """The share of all flips of signs whose sum is as far from zero."""
    observed = abs(sum(differences)) - 1e-9
    sums = [sum(sign * each for sign, each in zip(signs, differences, strict=True)) for signs in flips(differences)]
    return sum(abs(each) >= observed for each in sums) / len(sums)


def flips(differences: list[float]) -> itertools.product:
    return itertools.product((1, -1), repeat=len(differences))


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "halves": lambda rng: rng.choice([-0.5, 0.0, 0.5, 1.0]),
    "eighths of eight samples": lambda rng: rng.randint(-4, 8) / 8,
    "thirds and fifths": lambda rng: rng.choice([1 / 3, 0.2, -2 / 3, -0.4]),
    "any scores": lambda rng: rng.gauss(0.2, 0.4),
    "one large, many small": lambda rng: rng.choice([1.0, 0.001, -0.002, 0.003]),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("questions", [1, 2, 5, 9, 13])
def test_p_is_the_share_of_all_flips_that_are_as_extreme(draw: Callable[[random.Random], float], questions: int):
    rng = random.Random(questions)
    differences = [draw(rng) for _ in range(questions)]
    assert sign_flips(differences) == pytest.approx(counted(differences), rel=0.01)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.0, 0.0], 1.0),
        ([], 1.0),
        ([0.5], 1.0),
        ([0.5, -0.5], 1.0),
        ([0.1 + 0.2, -0.3] * 3, 1.0),
        ([0.25] * 5, 2 / 2**5),
        ([-0.25] * 5, 2 / 2**5),
        ([0.25] * 40, 2 / 2**40),
        ([1e-9] * 20, 2 / 2**20),
        ([0.123456789 + n / 1e5 for n in range(60)], 2 / 2**60),
        ([1.0, 1.0, 1.0, 1.0, 1.0, -0.5], 4 / 2**6),
        ([1.0] * 2000, 1e-300),
    ],
)
def test_p_of_known_differences(differences: list[float], p: float):
    assert sign_flips(differences) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("draw", ["halves", "eighths of eight samples", "any scores"])
@pytest.mark.parametrize("shift", [0.0, 0.03, 0.05])
def test_ordinary_p_values_are_those_of_random_permutations(draw: str, shift: float):
    import numpy as np
    from scipy.stats import permutation_test

    rng = random.Random(7)
    differences = [
        DRAWS[draw](rng) - {"halves": 0.25, "eighths of eight samples": 0.25}.get(draw, 0.2) + shift for _ in range(200)
    ]
    drawn = permutation_test(
        (np.array(differences),),
        np.mean,
        permutation_type="samples",
        n_resamples=9999,
        rng=np.random.default_rng(0),
        batch=1000,
    )
    p = sign_flips(differences)
    assert float(drawn.pvalue) == pytest.approx(p, abs=4 * (p / 9999) ** 0.5 + 2e-4), "seed 7"


@pytest.mark.parametrize("number", [1, 2, 18, 19, 20, 50, 100, 200])
@pytest.mark.parametrize("samples", [1, 2, 8, 0])
def test_the_gate_of_every_round_opens_for_a_model_that_is_better_by_far(number: int, samples: int):
    """With one sample, several, and scores of partial credit (0)."""
    rng = random.Random(number)
    won = [1.0 if samples == 1 else rng.randint(1, samples) / samples if samples else rng.random() for _ in range(100)]
    found = paired_difference([0.0] * 100, won)
    assert found["p_value"] < level_of(number)
    assert found["ci"][0] > 0, "the interval is of 95% in every round; it needs no level"


@pytest.mark.parametrize("number", [1, 20, 100])
@pytest.mark.parametrize("scores", ["right or wrong", "of several samples"])
def test_a_gate_opens_with_as_many_questions_as_it_says_and_not_with_one_less(number: int, scores: str):
    level = level_of(number)
    needed = questions_to_reach(level)

    def p(questions: int) -> float:
        won = [1.0 if scores == "right or wrong" else 0.5 + 0.5 * (place % 2) for place in range(questions)]
        return paired_difference([0.0] * questions, won)["p_value"]

    assert p(needed) < level <= p(needed - 1)
    assert p(needed) == pytest.approx(smallest_p(needed))
    assert cannot_pass(needed, level) == ""
    assert f"{needed} or more" in cannot_pass(needed - 1, level)


@pytest.mark.parametrize(("level", "needed"), [(0.05, 6), (level_of(1), 7), (level_of(20), 14), (level_of(100), 18)])
def test_how_many_questions_a_level_needs(level: float, needed: int):
    assert questions_to_reach(level) == needed


def test_a_test_has_two_sides_and_no_p_is_nothing():
    rng = random.Random(3)
    differences = [rng.gauss(0.1, 0.3) for _ in range(50)]
    assert sign_flips(differences) == sign_flips([-each for each in differences])
    assert mcnemar(5, 20) == mcnemar(20, 5)
    assert 0.0 < mcnemar(3000, 0) < 1e-200
    assert 0.0 < sign_flips([rng.random() for _ in range(12_000)]) < 1e-200


def test_as_many_questions_as_nobody_counts_are_taken_for_normally_distributed():
    import numpy as np
    from scipy.stats import norm

    drawn = np.random.default_rng(1).normal(0.002, 0.2, 20_000)
    z = abs(drawn.sum()) / (drawn**2).sum() ** 0.5
    assert sign_flips(drawn.tolist()) == pytest.approx(2 * norm.sf(z), rel=1e-6)
    assert sign_flips(drawn[:10_000].tolist()) == pytest.approx(
        2 * norm.sf(abs(drawn[:10_000].sum()) / (drawn[:10_000] ** 2).sum() ** 0.5), rel=0.02
    )
