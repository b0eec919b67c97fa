"""The significance level of each of many gates, so that all together promote by chance in at most one of twenty cases.

In: a round's number. Out: its gate's level. Alpha spending (D. Foster and R. Stine, J. R. Stat. Soc. B 70, 2008): gate
r may spend LEVEL × w_r, and the w_r of infinitely many gates sum to 1; by the union bound no more than LEVEL is spent,
however many rounds are run and whatever they depend on. w_r falls as r ** -1.6, as in the R package onlineFDR.
"""

from apprentice.tasks.analysis.statistics import LEVEL

DECAY = 1.6
"""A larger one leaves less for late gates."""


def level_of(number: int) -> float:
    """The level of the gate of a round after the first training, which is round 0 and is judged at LEVEL by itself."""
    from scipy.special import zeta

    return LEVEL * number**-DECAY / float(zeta(DECAY))
