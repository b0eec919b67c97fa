"""Splits GRPO's questions into training and held-out ones, and configures TRL's evaluation on the latter.

In: the questions of the GRPO window. Out: the two sets, TRL's arguments. TRL evaluates through the same rollouts, with
one completion per question, and logs `eval_reward`.
"""

from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.jsonl import read_learned, same_text
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import GrpoSpec
from apprentice.tasks.training.entry_points import row_of

METRIC = "eval_reward"


def split(asked: list[dict[str, Any]], number: int, before: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to train on, and `number` rows to hold out: the last ones of the window with distinct texts.

    Held-out questions are new to the checkpoint `before`, and their texts are removed from training. Raises Stop when
    too few questions remain.
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
            f"grpo.held_out needs {number} questions of the GRPO window, which has {len(distinct)} distinct ones, "
            f"{len(fresh)} of them new to the model; at least as many must remain to train on.",
            "Raise windows.grpo.size, or lower grpo.held_out.questions.",
        )
    return left, [distinct[text] for text in distinct if text in held]


def held_out_rows(environment: EnvironmentSpec, held: list[dict[str, Any]], mode: str) -> Any:
    """TRL's eval_dataset; None without questions. The column `held_out` marks the rows, so the reward can tell them."""
    from datasets import Dataset

    instance = environment.make()
    rows = [row_of(mode, instance, row["seed"], row["question"]) | {"held_out": True} for row in held]
    return Dataset.from_list(rows) if rows else None


def evaluation(spec: GrpoSpec) -> dict[str, Any]:
    """The evaluation arguments of GRPOConfig; empty without held-out questions."""
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
