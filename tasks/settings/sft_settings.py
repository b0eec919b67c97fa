"""The settings of SFT.

In: a recipe's section `sft`. Out: validated settings; everything else keeps TRL's defaults.
"""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from apprentice.tasks.settings.signals import Signals
from apprentice.tasks.settings.spec import OPERATIONAL, WHEN_GIVEN
from apprentice.tasks.settings.training import LearningRate, Positive, Scheduler, TrainerSpec
from apprentice.tasks.settings.trl_arguments import ITSELF

CONTROL_HELD_OUT = 0.1
"""Share of the rows that choose the control's epoch."""


class SftSpec(TrainerSpec):
    """TRL's SFTTrainer, with the tutorial's defaults."""

    section = "sft"
    label = "SFT"
    config = "SFTConfig"
    trl_fields: ClassVar[dict[str, str]] = {
        "num_train_epochs": "sft.epochs",
        "max_length": "lengths",
        "assistant_only_loss": ITSELF,
    }
    shown_metric = "loss"

    batch_size: Positive = 4
    """Sequences per device and batch."""
    gradient_accumulation: Positive = 2
    """Batches per optimizer step."""
    learning_rate: LearningRate = 2e-5
    """Peak learning rate; a built student needs about a hundred times as much."""
    scheduler: Scheduler = "cosine"
    """Learning rate schedule, one of transformers' schedulers. Arguments go into `args`: `warmup_stable_decay` needs
    {lr_scheduler_kwargs: {num_decay_steps: 10}}, the two with a minimum {lr_scheduler_kwargs: {min_lr_rate: 0.1}}."""
    logging_steps: int = Field(default=5, ge=1)
    """Steps between two logs."""
    epochs: float = Field(default=3.0, gt=0.0)
    """Maximum number of epochs; see `stop_at_token_accuracy`."""
    stop_at_token_accuracy: float | None = Field(default=None, gt=0.0, le=1.0)
    """Stop when the logged token accuracy reaches this share, and leave the rest to GRPO. A small model learns a skill
    abruptly, after a number of steps that varies with the seed; the accuracy at which to stop does not vary."""
    max_rows: Positive | None = None
    """Train on the first rows only."""
    held_out: float = Field(default=0.0, ge=0.0, le=0.5, json_schema_extra=WHEN_GIVEN)
    """Share of the rows to hold out of training. The loss on them is measured after each epoch, and the epoch with the
    lowest is published. 0 publishes the last step."""
    stop_without_gain: Positive | None = Field(default=None, json_schema_extra=WHEN_GIVEN)
    """Stop after so many epochs without a lower loss on the rows of `held_out`. The model is the same as after all
    epochs, unless a later one had been better still."""
    share_prompts: bool = Field(default=True, json_schema_extra=OPERATIONAL)
    """Compute what the rows of a batch begin with once, from 32 tokens on: instructions, tools, common words. The
    weights are the same up to rounding, which no sampled token depends on here, so it is no part of the key. Needs what
    `grpo.share_prompts` needs; not with packing."""
    control: bool | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Also train SFT to its best on the same rollouts, as a control for GRPO: all rows, no early stop, the best epoch.
    It holds out `held_out`, or a tenth. Default: exactly where `stop_at_token_accuracy` or `max_rows` ends SFT early.
    """
    signals: Signals = Signals()
    """What to warn about or stop at during training."""

    @model_validator(mode="after")
    def _gain_needs_rows(self) -> Self:
        if self.stop_without_gain is not None and not self.held_out:
            raise ValueError("sft.stop_without_gain needs rows to measure a loss on: set sft.held_out: 0.1, or drop it")
        return self

    def to_its_best(self) -> "SftSpec | None":
        """The settings of the control; None where it is not wanted."""
        ends_early = self.stop_at_token_accuracy is not None or self.max_rows is not None
        if self.control is False or (self.control is None and not ends_early):
            return None
        held_out = self.held_out or CONTROL_HELD_OUT
        return self.model_copy(update={"stop_at_token_accuracy": None, "max_rows": None, "held_out": held_out})

    @property
    def chooses_weights(self) -> tuple[str, str] | None:
        remedy = "Set sft.held_out: 0, and sft.control: false if SFT stops early."
        return ("sft.held_out loads the best epoch's weights at the end", remedy) if self.held_out else None
