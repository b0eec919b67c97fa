"""The rows of GRPO's datasets: one a question, to train on or held out for TRL's evaluation during the training.

In: the rows of GRPO's window, the checkpoint that it starts from. Out: rows to train on, and TRL's eval_dataset.
"""

from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.reporting.errors import Stop

METRIC = "eval_reward"


def row_of(mode: str, instance: Player, seed: int, question: str) -> dict[str, Any]:
    """A dataset row. A rollout function receives only the prompt, so its last message includes seed and question."""
    part = instance.part(seed)
    opening = prompt(part, "")
    named: dict[str, Any] = {"seed": seed, "question": question}
    if mode == "rollout_func":
        return {"prompt": [*opening[:-1], opening[-1] | named]}
    return {"prompt": opening} | named | ({"environment": part.label} if part.label else {})


def split(rows: list[dict[str, Any]], number: int, before: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to train on, and `number` rows to hold out: the last ones of the window with distinct texts.

    Held-out questions are new to the checkpoint `before`, and their texts are removed from training. Raises Stop when
    too few questions remain.
    """
    if not number:
        return rows, []
    learned = {same_text(row["question"]) for row in read_learned(before)}
    distinct = {same_text(row["question"]): row for row in rows}
    fresh = [text for text in distinct if text not in learned]
    held = set(fresh[-number:])
    left = [row for row in rows if same_text(row["question"]) not in held]
    if len(held) < number or len(left) < number:
        raise Stop(
            f"grpo.held_out needs {number} questions of the GRPO window, which has {len(distinct)} distinct ones, "
            f"{len(fresh)} of them new to the model; at least as many must remain to train on.",
            "Raise windows.grpo.size, or lower grpo.held_out.questions.",
        )
    return left, [distinct[text] for text in distinct if text in held]


def held_out_rows(environment: EnvironmentSpec, held: list[dict[str, Any]], mode: str) -> Any:
    """TRL's eval_dataset; None without questions. The column `held_out` marks the rows for the reward."""
    from datasets import Dataset

    instance = environment.make()
    rows = [row_of(mode, instance, row["seed"], row["question"]) | {"held_out": True} for row in held]
    return Dataset.from_list(rows) if rows else None
