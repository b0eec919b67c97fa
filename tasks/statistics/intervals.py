"""Intervals of rates and means, of 95%, by Wilson, the bootstrap or Welch.

In: answers to each question, 1 or 0, or scores. Out: low and high. Questions are independent, samples of one question
are not: several answers to one count for less than as many answers to different questions.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

Interval = tuple[float, float]
RESAMPLES = 10_000
LEVEL = 0.05
PRIOR = NormalDist().inv_cdf(1.0 - LEVEL / 2) ** 2 / 4
"""The variance of z² answers, half of them right, which Wilson's interval adds to the variance that it sees."""


def wilson(successes: float, n: float) -> Interval:
    """Wilson's score interval for a rate (E. B. Wilson, 1927), which stays accurate near 0 and 1. Each answer is to
    another question: `clustered_interval` takes several answers to one."""
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


def worth(by_question: Iterable[Sequence[float]]) -> float:
    """To how many different questions one answer each would be worth as much as these answers: the number of questions
    over the design effect (L. Kish, Survey Sampling, 1965), and no more than there are answers.

    Answers to one question that are all alike are worth one. How alike they are is seen in how much the questions'
    rates differ; as in Wilson's interval, z² questions more are assumed, half of them right, with answers that are all
    alike. So where nearly all answers are right, which tells little about it, they are worth about as many as there are
    questions.

    Args:
        by_question: For each question its answers, 1 for a right one and 0 for a wrong one.
    """
    groups = [(len(answers), sum(answers)) for answers in by_question]
    answers, squares = sum(n for n, _ in groups), sum(n * n for n, _ in groups)
    rate = sum(right for _, right in groups) / answers
    alike = answers * answers / squares  # as many questions as there are, where all have as many answers
    usual = squares / len(groups)
    between = sum((right - n * rate) ** 2 for n, right in groups) / usual
    return min(answers, alike * (len(groups) * rate * (1 - rate) + PRIOR) / (between + PRIOR))


def clustered_interval(by_question: Iterable[Sequence[float]]) -> Interval:
    """The interval of a rate for one or several answers to each question: Wilson's, with as many answers as they are
    `worth`; with one answer each, or where all answers to a question are alike, Wilson's of the questions.

    Of answers that are no successes, such as scores with partial credit, the bootstrap interval over questions.
    """
    groups = [list(map(float, answers)) for answers in by_question]
    if not all(map(is_binary, groups)):
        return mean_interval([sum(each) / len(each) for each in groups])
    if all(len(set(each)) == 1 for each in groups) and len({len(each) for each in groups}) == 1:
        return wilson(round(sum(each[0] for each in groups)), len(groups))
    answers = sum(map(len, groups))
    return interval_of(sum(map(sum, groups)) / answers, worth(groups))


def interval_of(accuracy: float, n: float) -> Interval:
    """Wilson's interval of a rate over so many answers to different questions, or answers that are `worth` as many."""
    right = accuracy * n
    return wilson(round(right) if math.isclose(right, round(right), abs_tol=1e-6) else right, n)


def is_binary(values: Sequence[float]) -> bool:
    return all(value in (0, 1) for value in values)


def welch_interval(before: list[float], after: list[float]) -> Interval | None:
    """Welch's interval for the difference of two means; None without enough values or variance."""
    from scipy.stats import ttest_ind

    if min(len(before), len(after)) < 2 or (len(set(before)) == 1 and len(set(after)) == 1):
        return None
    interval = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def percent(rate: float, ci: Interval | list[float]) -> str:
    """A rate with its interval as text."""
    return f"{rate:.1%} ({ci[0]:.1%} to {ci[1]:.1%})"
