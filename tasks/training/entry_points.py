"""The two rollout modes of TRL's GRPOTrainer, `environment_factory` and `rollout_func`. Both play the same turns.

In: an instance of the environment, for its tools and prompts, and the rollouts. Out: the trainer class and its
arguments. TRL sees the tools and the question; `Rollouts` plays the episodes. https://huggingface.co/docs/trl/openenv
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.tasks.episodes.episode import Message, prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.training import trl_internals
from apprentice.tasks.training.rollouts import Rollouts
from apprentice.tasks.training.turns import play_turns


def by_factory(instance: ToolEnvironment, rollouts: Rollouts) -> tuple[type, dict[str, Any]]:
    """A trainer class with our tool loop, and its arguments; TRL renders prompts and tools, and generates."""

    def play(trainer: Any, *first: Any) -> Any:
        return play_turns(trainer, rollouts, instance.max_turns, *first)

    trainer_class = trl_internals.episode_trainer(rollouts.begin, play)
    of_parts = {part.label: partial(_facade, part) for part in instance._parts()}
    return trainer_class, {"environment_factory": of_parts.get("") or of_parts}  # of a mixture by label


def by_rollout_func(instance: ToolEnvironment, rollouts: Rollouts) -> tuple[type, dict[str, Any]]:
    """TRL's trainer and its arguments; our rollout function renders the prompts, plays, and masks the tool replies."""
    from trl import GRPOTrainer

    turns = instance.max_turns

    def rollout(prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        rows = [messages[-1] for messages in prompts]
        rollouts.begin(rows)
        tokenizer, parts = trl_internals.tokenizer_of(trainer), [instance._part(row["seed"]) for row in rows]
        rendered = [
            prompt_ids(tokenizer, prompt(part, row["question"]), tool_schemas(part))
            for part, row in zip(parts, rows, strict=True)
        ]
        mode = "num_generations" if trainer.model.training else "num_generations_eval"
        first_ids, logprobs = trl_internals.generate(trainer, rendered, getattr(trainer, mode))
        played = play_turns(trainer, rollouts, turns, rendered, first_ids, logprobs)
        return {
            "prompt_ids": rendered,
            "completion_ids": played.completion_ids,
            "logprobs": played.logprobs,
            "env_mask": played.mask,
            "seed": [row["seed"] for row in rows],
            "question": [row["question"] for row in rows],
        }

    return GRPOTrainer, {"rollout_func": rollout}


ROLLOUT_MODES: dict[str, Callable[[ToolEnvironment, Rollouts], tuple[type, dict[str, Any]]]] = {
    "environment_factory": by_factory,
    "rollout_func": by_rollout_func,
}


def row_of(mode: str, instance: ToolEnvironment, seed: int, question: str) -> dict[str, Any]:
    """A dataset row. A rollout function receives only the prompt, so its last message includes seed and question."""
    part = instance._part(seed)
    opening = prompt(part, "")
    named: dict[str, Any] = {"seed": seed, "question": question}
    if mode == "rollout_func":
        return {"prompt": [*opening[:-1], opening[-1] | named]}
    return {"prompt": opening} | named | ({"environment": part.label} if part.label else {})


def _facade(environment: ToolEnvironment) -> ToolEnvironment:
    """The environment class that TRL sees: it has the tools, and its `reset` returns the row's question."""

    def reset(self: ToolEnvironment, *, question: str, **row: Any) -> str:
        return question

    return type("Facade", (type(environment),), {"reset": reset})(environment.settings)
