"""Which signals in the curves of a training warn or stop.

In: `signals` of a section that trains. Out: validated thresholds; training and report apply the same ones.
"""

from typing import Literal

from pydantic import Field

from apprentice.tasks.settings.spec_base import WHEN_GIVEN, Spec

Act = Literal["stop", "warn", "off"]
"""`stop` ends the training at that step, `warn` warns once and continues, `off` disables the check."""


class Signals(Spec):
    """The checks of every training, after each log."""

    nan: Act = "stop"
    """A NaN or infinite loss, gradient or reward. Such a step changes no weight. `stop` keeps the last checkpoint
    before it; `warn` skips the step, continues, and publishes the last weights. Weights with NaN are never published.
    """


class RewardSignals(Signals):
    """The checks of a training by reward; training and the report use the same rules."""

    saturated: Act = "warn"
    """Most groups have equal rewards, with a mean above `low`: further training teaches little."""
    no_signal: Act = "warn"
    """Most groups have equal rewards, with a mean at `low` or below: there is nothing to learn from."""
    length: Act = "warn"
    """Completions shrink to `length_left` of their initial length while the reward does not rise."""
    entropy: Act = "warn"
    """Entropy falls to `entropy_left` of its initial value before the reward reaches `high`: the policy has collapsed
    and no longer explores. With `grpo.skip_dead_groups` it is the entropy of groups whose rewards differ; the other
    groups count in `saturated` and `no_signal`."""
    engine: Act = "warn"
    """vLLM generates, and its log-probabilities differ from the trainer's by more than `engine_gap` on the same tokens:
    its samples are not the policy's."""
    engine_gap: float = Field(default=0.05, gt=0.0)
    """Mean difference of a token's log-probabilities, in nats, above which `engine` is reported. In fp32 it is about
    1e-6, in bf16 0.001 to 0.02."""
    cut_off: Act = Field(default="warn", json_schema_extra=WHEN_GIVEN)
    """More than `most_cut_off` of the rollouts have a thought that is cut off or over its budget."""
    most_cut_off: float = Field(default=0.2, gt=0.0, le=1.0, json_schema_extra=WHEN_GIVEN)
    """Share of rollouts above which `cut_off` is reported."""
    longer: Act = Field(default="warn", json_schema_extra=WHEN_GIVEN)
    """Thoughts grow to half as long again as at first, while the reward does not rise."""
    stopped: Act = Field(default="warn", json_schema_extra=WHEN_GIVEN)
    """Thoughts shrink to `length_left` of their initial length while the reward rises."""
    window: int = Field(default=10, ge=2)
    """Logs to average over; the first such window is the initial value. A longer window is more certain, and later."""
    dead_groups: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of groups with equal rewards (`frac_reward_zero_std`) that counts as most of them."""
    low: float = Field(default=0.2, ge=0.0, le=1.0)
    """A mean reward at or below this counts as no success."""
    high: float = Field(default=0.9, ge=0.0, le=1.0)
    """A mean reward at or above this leaves little to learn."""
    length_left: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the initial completion length at which `length` is reported."""
    entropy_left: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the initial entropy at which `entropy` is reported."""
