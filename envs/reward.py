"""What a reward means: the one place that says which episode is right."""

ROUNDING = 1e-6
"""A reward this near to a bound of its range is that bound: 0.7 + 0.2 + 0.1 is 0.9999999999999999, and sums in single
precision miss by 1e-7."""


def is_right(reward: float | None) -> bool:
    """Whether an episode is right: its reward is at least 1.0, within `ROUNDING`. Everything that asks this asks here.

    It is above 1.0 only where a scale says which reward counts as right, and more can be earned.
    """
    return reward is not None and reward >= 1.0 - ROUNDING
