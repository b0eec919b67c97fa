"""The settings of DPO, and the model that it makes.

In: a recipe's section `dpo`. Out: validated settings; everything else keeps TRL's defaults.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from apprentice.tasks.artifacts.types import LossCheckpoint
from apprentice.tasks.settings.signals import Signals
from apprentice.tasks.settings.training import LearningRate, Positive, Scheduler, TrainerSpec
from apprentice.tasks.settings.trl_arguments import ITSELF


class DpoSpec(TrainerSpec):
    """TRL's DPOTrainer, on the groups that `grpo.keep_groups` keeps."""

    section = "dpo"
    label = "DPO"
    config = "DPOConfig"
    trl_fields: ClassVar[dict[str, str]] = {
        "num_train_epochs": "dpo.epochs",
        "beta": "dpo.beta",
        **dict.fromkeys(("max_length", "remove_unused_columns"), ITSELF),
    }
    shown_metric = "loss"

    batch_size: Positive = 4
    """Pairs per device and batch."""
    gradient_accumulation: Positive = 2
    """Batches per optimizer step."""
    learning_rate: LearningRate = 1e-6
    """Peak learning rate; a built student needs about a hundred times as much."""
    scheduler: Scheduler = "linear"
    """Learning rate schedule, one of transformers' schedulers."""
    epochs: float = Field(default=1.0, gt=0.0)
    """Passes over the pairs."""
    beta: float = Field(default=0.1, gt=0.0)
    """How strongly the model is held to the one that it began from."""
    pairs_a_group: Positive = 2
    """The most pairs of one group. No episode is in two pairs."""
    signals: Signals = Signals()
    """What to warn about or stop at during training."""

    def lacks(self, others: Iterable[TrainerSpec]) -> str:
        if any(getattr(each, "keep_groups", False) for each in others):
            return ""
        return "dpo learns from the groups that GRPO keeps; set grpo.keep_groups: true"


class DpoCheckpoint(LossCheckpoint):
    """The student after DPO."""

    suffix = "dpo"
    place = 3
    stage: Literal["dpo"] = "dpo"  # type: ignore[assignment]
