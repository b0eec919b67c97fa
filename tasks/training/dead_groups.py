"""Skips the forward and backward pass of completions whose whole group has the same reward: their gradient is zero.

In: the rewards of a step, a GRPOTrainer. Out: which completions have a signal, and a trainer class that learns from
those only, with the denominators of the whole batch. The weights are those without skipping up to rounding.
"""

from typing import Any

from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training import trl_internals

SHARE_OF_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
SHARE_OF_TOKENS = ("bnpo",)
SHARE_OF_STEP = ("dapo", "cispo", "vespo")
"""TRL's loss types by what they divide by: the rows of a batch, its tokens, or the tokens of all processes' step."""
RANDOM = ("dropout", "layerdrop", "jitter_noise")
"""In the names of a config's settings: some models drop out without a module for it."""


def skipping_dead_groups(trainer_class: type, spec: GrpoSpec) -> type:
    """The trainer class, which skips dead groups if the recipe says so."""
    if not spec.skip_dead_groups:
        return trainer_class
    return trl_internals.skipping_trainer(trainer_class, signals_of, loss_share)


def signals_of(trainer: Any, rewards: Any) -> Any:
    """Which rows of a step have a signal, as booleans; None where rows without one move the weights, too.

    Args:
        rewards: (rows of all processes, reward functions), the rows of a group in sequence; NaN for none.
    """
    if not _is_exact(trainer):
        return None
    return rows_with_signal(_compared(trainer, rewards), trainer.num_generations)


def dead_and_live(trainer: Any, rewards: Any) -> tuple[list[bool], list[bool]]:
    """Which groups have equal rewards, and which have rewards that differ. A group of which infrastructure lost a
    rollout is never dead: where the other rewards are equal, it is neither.

    Args:
        rewards: As in `signals_of`.
    """
    compared = _compared(trainer, rewards)
    live = rows_with_signal(compared, trainer.num_generations).view(-1, trainer.num_generations).any(dim=1)
    whole = ~compared.isnan().all(dim=1).view(-1, trainer.num_generations).any(dim=1)
    return (whole & ~live).tolist(), live.tolist()


def _compared(trainer: Any, rewards: Any) -> Any:
    """The rewards that are compared within a group: TRL's weighted sum, or each stream where TRL normalizes them one by
    one."""
    if trainer.multi_objective_aggregation == "normalize_then_sum":
        return rewards
    total = (rewards * trainer.reward_weights.to(rewards.device)).nansum(dim=1, keepdim=True)
    total[rewards.isnan().all(dim=1)] = float("nan")
    return total


def rows_with_signal(rewards: Any, generations: int) -> Any:
    """Rows that have a reward, in groups whose rewards differ. Compares the rewards themselves: the standard deviation
    of eight rewards of 0.1 is not zero in floating point."""
    import torch

    missing = rewards.isnan()
    grouped = (-1, generations, rewards.size(1))
    highest = torch.where(missing, -torch.inf, rewards).view(grouped).amax(dim=1)
    lowest = torch.where(missing, torch.inf, rewards).view(grouped).amin(dim=1)
    differ = (highest > lowest).any(dim=1)
    return differ.repeat_interleave(generations) & ~missing.all(dim=1)


def loss_share(trainer: Any, rows: float, tokens: float) -> float:
    """What TRL's loss of the kept rows is multiplied by, so that it is that of the whole batch.

    Args:
        rows: Share of a batch's rows that are kept.
        tokens: Share of its tokens.
    """
    if trainer.loss_type in SHARE_OF_STEP:  # TRL counts these before rows are left out
        return 1.0
    return rows if trainer.loss_type in SHARE_OF_ROWS else tokens


def _is_exact(trainer: Any) -> bool:
    """Whether a row without advantage moves no weight, and changes nothing for the other rows.

    It does with a KL term, an entropy bonus, a router's loss, an entropy quantile over all rows, or dropout, whose
    random numbers depend on the number of rows.
    """
    return (
        trainer.loss_type in (*SHARE_OF_ROWS, *SHARE_OF_TOKENS, *SHARE_OF_STEP)
        and trainer.beta == 0.0
        and trainer.entropy_coef == 0.0
        and not trainer.use_adaptive_entropy
        and not trainer.aux_loss_enabled
        and trainer.top_entropy_quantile == 1.0
        and not is_random(trainer)
    )


def is_random(trainer: Any) -> bool:
    """Whether a forward pass of training draws random numbers: for dropout, jitter of a router, or NEFTune's noise."""
    import torch

    model = trainer.model
    layers = (module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))
    named = (value for name, value in vars(model.config).items() if any(each in name for each in RANDOM))
    settings = (value for value in named if isinstance(value, float))
    return any(layers) or any(settings) or bool(trainer.args.neftune_noise_alpha)
