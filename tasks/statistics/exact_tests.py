"""Exact tests of paired differences: how often chance alone changes as much, however small that p is.

In: one difference per question, or how many rose and fell. Out: two-sided p-values. The tests count all outcomes, so
the smallest p depends on the questions alone, and a gate's level can fall from round to round and still be reached.
With 10,000 random permutations no p is below 2 / 10,000.
"""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

CELLS = 2**17
"""Steps of the lattice that sums are rounded to, where the differences are no multiples of one fraction."""
A_STEP = 24
"""Least steps of that lattice for each difference, on average: rounding then moves p by less than 1%."""
COARSEST = 1000
"""Largest denominator of a difference that is taken for a fraction, such as 3/8 of eight samples."""
MANY = 10_000
"""Differences from which the sum is normally distributed as closely as that."""
TINY = 1e-300
"""What stands for a p that is smaller than a float can be."""


def smallest_p(questions: int) -> float:
    """The smallest p of either test: all of so many questions rise, which chance does once in 2 ** (n - 1)."""
    return 2.0 ** (1 - questions)


def questions_to_reach(level: float) -> int:
    """How many questions must rise, and none fall, for p to be below a level."""
    return next(needed for needed in itertools.count(1) if smallest_p(needed) < level)


def cannot_pass(questions: int, level: float) -> str:
    """Why no model can pass a gate of that level with so few questions; empty if one can."""
    if smallest_p(questions) < level:
        return ""
    needed = questions_to_reach(level)
    return (
        f"with {questions} questions p is at least {smallest_p(questions):.2g}, and only {needed} or more can reach it"
    )


def mcnemar(won: int, lost: int) -> float:
    """McNemar's exact test."""
    from statsmodels.stats.contingency_tables import mcnemar

    tested: Any = mcnemar([[0, lost], [won, 0]], exact=True)  # concordant pairs do not matter
    return max(float(tested.pvalue), TINY)


def sign_flips(differences: Sequence[float]) -> float:
    """The paired permutation test over all 2 ** n flips of signs, not a sample of them.

    By dynamic programming over the sums of the differences that are flipped. Exact where the differences are multiples
    of one fraction, as those of several samples are; else they are rounded to a lattice, which moves p by less than 1%.
    """
    changed = sorted(abs(each) for each in differences if each)
    if not changed:
        return 1.0
    observed = abs(math.fsum(differences))
    if len(changed) > MANY:
        return max(math.erfc(observed / math.sqrt(2 * math.fsum(each**2 for each in changed))), TINY)
    steps, size = _on_lattice(changed)
    # where those of one sign sum up to W, the sum of all is 2 W - S: as extreme as observed for W <= (S - observed) / 2
    rounded = abs(sum(round(each / size) for each in differences))
    most = int((sum(steps) - min(rounded, observed / size)) / 2 + 1e-6)
    return min(1.0, max(2.0 * _tail(steps, most), TINY))


def _tail(steps: Sequence[int], most: int) -> float:
    """The share of all subsets that sum up to at most `most`."""
    import numpy as np

    ways = np.zeros(most + 1)
    ways[0], reached = 1.0, 0
    for step in steps:
        reached = min(reached + step, most)
        ways[: reached + 1] *= 0.5
        if step <= reached:
            ways[step : reached + 1] += ways[: reached + 1 - step].copy()
    return float(ways.sum())


def _on_lattice(changed: Sequence[float]) -> tuple[list[int], float]:
    """The differences as whole numbers of steps, the small ones first, and the size of a step."""
    most = max(CELLS, A_STEP * len(changed))
    fractions = {each: Fraction(each).limit_denominator(COARSEST) for each in set(changed)}
    if all(abs(float(found) - each) <= 1e-12 for each, found in fractions.items()):
        unit = Fraction(
            math.gcd(*(found.numerator for found in fractions.values())),
            math.lcm(*(found.denominator for found in fractions.values())),
        )
        steps = [int(fractions[each] / unit) for each in changed]
        if sum(steps) <= most:
            return steps, float(unit)
    size = math.fsum(changed) / most
    return [round(each / size) for each in changed], size
