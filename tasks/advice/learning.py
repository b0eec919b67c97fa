"""What the log of a training on rows shows: whether it has learned them, was still learning, or diverged.

In: the trainer's log history. Out: `Learning`. Losses are nats a token.
"""

from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

HELD_OUT_LOSS = "eval_held_out_loss"
"""The metric of the rows that choose the epoch."""
STILL = 0.9
"""The share of its first loss above which a training has learned next to nothing."""
FALLS = 0.93
"""The share of the second quarter's loss below which the last quarter's shows that it was still falling."""
ROSE = 1.5
"""The multiple of the least loss above which the last one has diverged."""
NEAR_ZERO = 0.05
"""A loss at which the rows are known, where no token accuracy was logged."""
FEWEST = 4
"""Logs from which on halves of a course are compared."""


class Learning(NamedTuple):
    """The course of a training on rows. Each loss is the mean of some logs."""

    first: float
    middle: float
    """Of the second quarter."""
    last: float
    least: float
    token_accuracy: float | None
    """The share of its rows' tokens that it predicted in the end."""
    held_out: tuple[float, float] | None
    """The lowest loss on rows that were held out, and the last one; None without any."""
    logs: int = FEWEST
    """Of fewer than `FEWEST` no course is read; of one alone nothing."""

    @property
    def barely_moved(self) -> bool:
        return self.logs > 1 and self.last >= STILL * self.first and not self.diverged

    @property
    def falling(self) -> bool:
        """Whether more passes would have gone on learning."""
        return self.last < FALLS * self.middle

    @property
    def diverged(self) -> bool:
        return not isfinite(self.last) or self.last > ROSE * self.least + NEAR_ZERO

    @property
    def overfits(self) -> bool:
        return self.held_out is not None and self.held_out[1] > self.held_out[0] / FALLS

    def is_learned(self, share: float) -> bool:
        """Whether it predicts so large a share of its rows' tokens."""
        return self.last <= NEAR_ZERO if self.token_accuracy is None else self.token_accuracy >= share


def learning_of(log: list[dict[str, Any]]) -> Learning | None:
    """Reads the log of a training on rows; None without a loss."""
    losses = [float(entry["loss"]) for entry in log if entry.get("loss") is not None]
    if not losses:
        return None
    accuracies = [entry["mean_token_accuracy"] for entry in log if entry.get("mean_token_accuracy") is not None]
    held_out = [entry[HELD_OUT_LOSS] for entry in log if entry.get(HELD_OUT_LOSS) is not None]
    quarter = max(len(losses) // FEWEST, 1)
    quarters = [fmean(losses[at : at + quarter]) for at in range(0, quarter * min(len(losses), FEWEST), quarter)]
    return Learning(
        first=fmean(losses[: min(quarter, 5)]),
        middle=quarters[1] if len(quarters) == FEWEST else quarters[0],
        last=fmean(losses[-min(quarter, 5) :]),
        least=min(quarters),
        token_accuracy=accuracies[-1] if accuracies else None,
        held_out=(min(held_out), held_out[-1]) if len(held_out) > 1 else None,
        logs=len(losses),
    )


def learned_nothing(log: list[dict[str, Any]]) -> str:
    """A warning where SFT's loss fell by less than a tenth: GRPO would begin from nothing. Else empty."""
    found = learning_of(log)
    if found is None or not found.barely_moved:
        return ""
    return (
        f"SFT has learned next to nothing: its loss was {found.first:.3g} at first and is {found.last:.3g} at the end. "
        "GRPO cannot mend that: raise sft.learning_rate or sft.epochs, or look at what was kept of the rollouts."
    )
