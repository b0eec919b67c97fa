"""Intervals and tests, from scipy and statsmodels.

In: one value an episode, paired by question where two models are compared. Out: 95% intervals and p-values.
"""

from typing import Any

Interval = tuple[float, float]
RESAMPLES = 10_000


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval for a rate (E. B. Wilson, 1927): honest near 0 and 1, where the normal one is not."""
    from statsmodels.stats.proportion import proportion_confint

    interval: Any = proportion_confint(successes, n, alpha=0.05, method="wilson")
    return float(interval[0]), float(interval[1])


def mean_interval(values: list[float]) -> Interval:
    """Percentile bootstrap of a mean; a single point when all values are equal."""
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


def paired_difference(before: list[bool], after: list[bool]) -> dict[str, Any]:
    """after - before on the same questions: the difference, its paired bootstrap interval, McNemar's exact p."""
    from statsmodels.stats.contingency_tables import mcnemar

    both = sum(b and a for b, a in zip(before, after, strict=True))
    lost = sum(before) - both
    won = sum(after) - both
    neither = len(before) - both - lost - won
    tested: Any = mcnemar([[both, lost], [won, neither]], exact=True)
    differences = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    return {
        "delta_accuracy": sum(differences) / len(differences),
        "ci": mean_interval(differences),
        "p_value": float(tested.pvalue),
        "won": won,
        "lost": lost,
    }


def welch_interval(before: list[float], after: list[float]) -> Interval | None:
    """Welch's interval for the difference of two means; None when there is too little to say."""
    from scipy.stats import ttest_ind

    if min(len(before), len(after)) < 2 or (len(set(before)) == 1 and len(set(after)) == 1):
        return None
    interval = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)
