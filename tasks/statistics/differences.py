"""Paired differences of two models on the same questions: interval, test, correction, and how many questions it takes.

In: one value per question before and after. Out: the difference with its interval and its p-value, as a report has it;
p-values that are corrected for several comparisons, and the level of each round's gate. Power is from statsmodels.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from apprentice.tasks.statistics.exact_tests import mcnemar, sign_flips
from apprentice.tasks.statistics.intervals import LEVEL, is_binary, mean_interval

POWER = 0.8
DECAY = 1.6
"""How fast the levels of gates fall from round to round; a larger one leaves less for late gates."""


class PairedTest(StrEnum):
    """The test of a paired difference."""

    MCNEMAR = "McNemar, exact"
    PERMUTATION = "paired permutation"


def paired_difference(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """after - before on the same questions.

    Returns:
        delta; ci, its paired bootstrap interval; p_value and its test: McNemar's exact test for values of 0 and 1, else
        the paired permutation test over all flips of signs; won and lost, the number of questions that rose and fell;
        and questions_for_5_points (see `questions_for`).
    """
    differences = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    won, lost = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    binary = is_binary(before) and is_binary(after)
    return {
        "delta": sum(differences) / len(differences),
        "ci": mean_interval(differences),
        "p_value": mcnemar(won, lost) if binary else sign_flips(differences),
        "test": PairedTest.MCNEMAR if binary else PairedTest.PERMUTATION,
        "won": won,
        "lost": lost,
        "questions_for_5_points": questions_for(0.05, differences),
    }


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


def level_of(number: int) -> float:
    """The significance level of the gate of round `number`; round 0 is judged at LEVEL by itself.

    Alpha spending (D. Foster and R. Stine, J. R. Stat. Soc. B 70, 2008): gate r may spend LEVEL × w_r, and the w_r of
    infinitely many gates sum to 1; by the union bound no more than LEVEL is spent, however many rounds are run and
    whatever they depend on. w_r falls as r ** -1.6, as in the R package onlineFDR.
    """
    from scipy.special import zeta

    return LEVEL * number**-DECAY / float(zeta(DECAY))
