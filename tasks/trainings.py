"""The trainings of a run, in their order. This is the only list of them."""

from typing import Any

from apprentice.tasks.dpo import DPO
from apprentice.tasks.grpo_training import GRPO
from apprentice.tasks.sft_training import SFT
from apprentice.tasks.training.method import Training

TRAININGS: tuple[Training[Any], ...] = (SFT, GRPO, DPO)


def training_of(name: str) -> Training[Any]:
    """The training whose section, stage and model have that name."""
    return next(each for each in TRAININGS if each.name == name)
