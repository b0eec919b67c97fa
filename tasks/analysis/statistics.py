"""Intervals, tests and power, from scipy and statsmodels.

In: one value per question, paired by question for two models. Out: 95% intervals, p-values, numbers of questions.
Several samples of a question are averaged first: questions are independent, samples of one question are not.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

Interval = tuple[float, float]
RESAMPLES = 10_000
POWER = 0.8
LEVEL = 0.05
DECAY = 1.6
"""How fast the levels of gates fall from round to round; a larger one leaves less for late gates."""


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval for a rate (E. B. Wilson, 1927), which stays accurate near 0 and 1."""
    z = NormalDist().inv_cdf(1.0 - LEVEL / 2)  # in three lines: scipy's takes a second to import, statsmodels' three
    center, half = successes + z**2 / 2, z * math.sqrt(successes * (n - successes) / n + z**2 / 4)
    low, high = (center - half) / (n + z**2), (center + half) / (n + z**2)
    return (low if successes else 0.0), (high if successes < n else 1.0)  # without the last bit's rounding


def mean_interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap interval of a mean; a single point when all values are equal."""
    import numpy as np
    from scipy.stats import bootstrap

    if len(set(values)) == 1:
        return values[0], values[0]
    result = bootstrap(
        (np.array(values),),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
        batch=1000,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def rate_interval(values: Sequence[float]) -> Interval:
    """Wilson's interval if every value is 0 or 1, else the bootstrap interval of the mean."""
    if _is_binary(values):
        return wilson(round(sum(values)), len(values))
    return mean_interval(values)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """after - before on the same questions.

    Returns:
        delta; ci, its paired bootstrap interval; p_value and its test: McNemar's exact test for values of 0 and 1, else
        the paired permutation test (sign flips); won and lost, the number of questions that rose and fell; and
        questions_for_5_points (see `questions_for`).
    """
    differences = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    won, lost = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    binary = _is_binary(before) and _is_binary(after)
    return {
        "delta": sum(differences) / len(differences),
        "ci": mean_interval(differences),
        "p_value": _mcnemar(won, lost) if binary else _sign_flips(differences),
        "test": "McNemar, exact" if binary else "paired permutation",
        "won": won,
        "lost": lost,
        "questions_for_5_points": questions_for(0.05, differences),
    }


def _is_binary(values: Sequence[float]) -> bool:
    return all(value in (0, 1) for value in values)


def _mcnemar(won: int, lost: int) -> float:
    from statsmodels.stats.contingency_tables import mcnemar

    tested: Any = mcnemar([[0, lost], [won, 0]], exact=True)  # concordant pairs do not matter
    return float(tested.pvalue)


def _sign_flips(differences: list[float]) -> float:
    import numpy as np
    from scipy.stats import permutation_test

    if not any(differences):
        return 1.0
    tested = permutation_test(
        (np.array(differences),),
        np.mean,
        permutation_type="samples",
        n_resamples=RESAMPLES - 1,
        rng=np.random.default_rng(0),
        batch=1000,
    )
    return float(tested.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for multiple comparisons (S. Holm, 1979)."""
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return []
    corrected: Any = multipletests(p_values, method="holm")[1]
    return [float(p) for p in corrected]


def questions_for(difference: float, differences: Sequence[float]) -> int | None:
    """Number of paired questions that detect a true `difference` with 80% power at the 5% level.

    Uses the power of a t test with the spread of the observed `differences`; for binary values the spread is at least
    that of the difference itself. None when the differences have no spread.
    """
    import numpy as np
    from statsmodels.stats.power import TTestPower

    if len(set(differences)) < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    if all(each in (-1, 0, 1) for each in differences):
        spread = max(spread, math.sqrt(difference - difference**2))
    if difference > spread:  # a handful is enough; the solver finds no solution
        return None
    solved: Any = TTestPower().solve_power(difference / spread, power=POWER, alpha=LEVEL)
    return math.ceil(np.asarray(solved).item())


def pass_at_k(right: int, samples: int, k: int) -> float:
    """The probability that at least one of `k` samples is right: the unbiased estimator of the Codex paper (Chen et
    al., 2021, section 2.1), that is 1 minus the hypergeometric probability of drawing none."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(0, samples, right, k))


def welch_interval(before: list[float], after: list[float]) -> Interval | None:
    """Welch's interval for the difference of two means; None without enough values or variance."""
    from scipy.stats import ttest_ind

    if min(len(before), len(after)) < 2 or (len(set(before)) == 1 and len(set(after)) == 1):
        return None
    interval = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def level_of(number: int) -> float:
    """The significance level of the gate of round `number`; round 0 is judged at LEVEL by itself.

    Alpha spending (D. Foster and R. Stine, J. R. Stat. Soc. B 70, 2008): gate r may spend LEVEL × w_r, and the w_r of
    infinitely many gates sum to 1; by the union bound no more than LEVEL is spent, however many rounds are run and
    whatever they depend on. w_r falls as r ** -1.6, as in the R package onlineFDR.
    """
    from scipy.special import zeta

    return LEVEL * number**-DECAY / float(zeta(DECAY))
