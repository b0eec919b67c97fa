"""What a training watches itself by: the signals that it warns of or stops at, and the questions that it holds out.

In: a recipe's sections `sft.signals`, `grpo.signals`, `grpo.held_out`. Out: checked settings; they enter the key.
"""

from typing import Literal

from pydantic import Field

from apprentice.tasks.settings.spec import Spec

Act = Literal["stop", "warn", "off"]
"""`stop` ends the training at that step, `warn` says it once and goes on, `off` does not look."""


class Signals(Spec):
    """What both trainers look for, after every log."""

    nan: Act = "stop"
    """A loss, a gradient or a reward that is no number. Such a step changes no weight. `stop` keeps the checkpoint
    before; `warn` leaves the step out and goes on, and publishes what the last one left. Weights that are no numbers
    are never published."""


class GrpoSignals(Signals):
    """What is read off GRPO's curves, while it trains and in the report: one set of rules."""

    saturated: Act = "warn"
    """Most groups score the same, above `low`: what is left of the training costs time and teaches little."""
    no_signal: Act = "warn"
    """Most groups score the same, at `low` or below: nothing can be learned from there."""
    length: Act = "warn"
    """Completions shrink to `length_left` of their first length, and the reward has not risen with it."""
    entropy: Act = "warn"
    """Entropy falls to `entropy_left` of what it was at first, before the reward is at `high`: the model says the same
    thing over and over, and finds nothing new."""
    window: int = Field(default=10, ge=2)
    """Logs whose mean is looked at: a longer one is surer, and later. What falls is compared with the first ones."""
    dead_groups: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of groups without a difference in reward (`frac_reward_zero_std`) that is most of them."""
    low: float = Field(default=0.2, ge=0.0, le=1.0)
    """A reward that is next to none."""
    high: float = Field(default=0.9, ge=0.0, le=1.0)
    """A reward that leaves little to learn."""
    length_left: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the first completions' length."""
    entropy_left: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the first logs' entropy."""


class HeldOut(Spec):
    """Questions of the GRPO window that are asked and not trained on: the checkpoint that does best is published."""

    questions: int = Field(default=0, ge=0)
    """One rollout each, at the temperature of training; 0: none are held out, and the last step is published. 100 tell
    10 points apart, roughly; they cost as much as a step with so many rollouts."""
    every: int = Field(default=10, ge=1)
    """Steps between two evaluations. Each one also keeps a checkpoint."""
    batch_size: int | None = Field(default=None, ge=1)
    """Completions that a device takes at once, and sessions that it needs; those of training when left out. Nothing is
    differentiated, so a larger one fits."""

    def at_once(self, batch_size: int) -> int:
        """Rollouts of an evaluation that are played at once, where `batch_size` are in training."""
        return min(self.questions, self.batch_size or batch_size)
