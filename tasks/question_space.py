"""Whether an environment has enough distinct questions: for the seed windows, and for the rounds to come.

In: the texts of the windows' questions. Out: how many must be new, about how many rounds they last; or Stop.
"""

import math
from collections import Counter
from typing import Any

from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import TRAINED_ON, SeedWindows

LEAST_FRESH = 0.5
"""Minimum share of a training window that must remain after evaluation questions are removed."""


def least_fresh(size: int) -> int:
    """Questions of a training window that must be new: half of them, so none of a window of one, as without GRPO."""
    return int(LEAST_FRESH * size)


def check_space(windows: SeedWindows, chosen: dict[str, int], rows: list[dict[str, Any]], needed: int) -> None:
    """Raises Stop where the windows have too few distinct questions, for the evaluation or beside it for training."""
    distinct = len({same_text(row["question"]) for row in rows})
    advice = "Widen the task (environment.settings) or reduce evaluate.questions."
    if len(chosen) < needed:
        raise Stop(
            f"The problem space is too small: {windows.evaluate.size} seeds gave only {len(chosen)} distinct "
            f"questions, and the evaluation needs {needed} ({distinct} distinct questions in all windows).",
            advice,
        )
    for purpose in TRAINED_ON:
        window = [row for row in rows if row["purpose"] == purpose]
        fresh = sum(row["used"] for row in window)
        if fresh < least_fresh(len(window)):
            raise Stop(
                f"The problem space is too small: {len(window) - fresh} of the {len(window)} {purpose} seeds repeat "
                f"evaluation questions ({distinct} distinct questions in all windows).",
                advice,
            )


def lasts(texts: list[str], a_round: int) -> int:
    """About how many rounds of `a_round` questions each a space lasts, estimated from the repeats among random ones.

    The number of distinct questions N is Chao's lower bound (A. Chao, Scand. J. Stat. 11, 1984) from the `texts` that
    occur once and twice; of n random ones in round r a share of exp(-r n / N) is new, and half of them must be.
    """
    times = Counter(Counter(map(same_text, texts)).values())
    once, twice = times[1], times[2]
    distinct = sum(times.values()) + (once * once / (2 * twice) if twice else once * (once - 1) / 2)
    return 1 + int(math.log(1 / LEAST_FRESH) * distinct / a_round)
