"""The questions that GRPO asks and does not train on, and how TRL evaluates on them.

In: the questions of the GRPO window. Out: those to train on, those held out, TRL's settings. An evaluation is TRL's
own: it plays through the same rollouts, with one completion a question, and logs `eval_reward`.
"""

from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.learned import read_learned
from apprentice.tasks.episodes.questions import same_text
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training.entry_points import row_of

METRIC = "eval_reward"


def split(asked: list[dict[str, Any]], number: int, before: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to train on, and `number` to hold out: the last ones of the window, of distinct texts.

    None that the checkpoint `before` learned from is held out, and no text of theirs is left in training. Raises Stop
    where too few are left.
    """
    if not number:
        return asked, []
    learned = {same_text(row["question"]) for row in read_learned(before)}
    distinct = {same_text(row["question"]): row for row in asked}
    fresh = [text for text in distinct if text not in learned]
    held = set(fresh[-number:])
    left = [row for row in asked if same_text(row["question"]) not in held]
    if len(held) < number or len(left) < number:
        raise Stop(
            f"grpo.held_out asks for {number} questions of the GRPO window, which has {len(distinct)} distinct ones, "
            f"{len(fresh)} of them new to the model: as many as are held out must be left to train on.",
            "Raise windows.grpo.size, or lower grpo.held_out.questions.",
        )
    return left, [distinct[text] for text in distinct if text in held]


def held_out_rows(environment: EnvironmentSpec, held: list[dict[str, Any]], way: str) -> Any:
    """TRL's eval_dataset; None for no questions. Its rows say what they are, so that no one takes them for training."""
    from datasets import Dataset

    instance = environment.make()
    rows = [row_of(way, instance, row["seed"], row["question"]) | {"held_out": True} for row in held]
    return Dataset.from_list(rows) if rows else None


def evaluation(spec: GrpoSpec) -> dict[str, Any]:
    """The arguments of GRPOConfig for it; none where nothing is held out."""
    if not spec.held_out.questions:
        return {}
    return {
        "eval_strategy": "steps",
        "eval_steps": spec.held_out.every,
        "per_device_eval_batch_size": spec.held_out.at_once(spec.batch_size),
        "num_generations_eval": 1,
        "metric_for_best_model": METRIC,
        "greater_is_better": True,
    }
