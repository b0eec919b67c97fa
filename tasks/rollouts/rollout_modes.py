"""The two rollout modes of TRL's GRPOTrainer, `environment_factory` and `rollout_func`. Both play the same turns."""

from collections.abc import Callable
from functools import partial
from typing import Any

from apprentice.envs.player import Player, facade_of
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models import trl_internals
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.rollouts.tool_loop import play_turns


def by_factory(instance: Player, rollouts: LiveRollouts) -> tuple[type, dict[str, Any]]:
    """A trainer class with our tool loop, and its arguments; TRL renders prompts and tools, and generates."""

    def play(trainer: Any, *first: Any) -> Any:
        return play_turns(trainer, rollouts, instance.max_turns, *first)

    trainer_class = trl_internals.episode_trainer(rollouts.begin, play)
    of_parts = {part.label: partial(facade_of, part) for part in instance.parts()}
    return trainer_class, {"environment_factory": of_parts.get("") or of_parts}  # of a mixture by label


def by_rollout_func(instance: Player, rollouts: LiveRollouts) -> tuple[type, dict[str, Any]]:
    """TRL's trainer and its arguments; our rollout function renders the prompts, plays, and masks the tool replies."""
    turns = instance.max_turns

    def rollout(prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        rows = [messages[-1] for messages in prompts]
        rollouts.begin(rows)
        tokenizer, parts = trl_internals.tokenizer_of(trainer), [instance.part(row["seed"]) for row in rows]
        rendered = [
            prompt_ids(tokenizer, prompt(part, row["question"]), part.schemas)
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

    return trl_internals.online_trainer(), {"rollout_func": rollout}


ROLLOUT_MODES: dict[str, Callable[[Player, LiveRollouts], tuple[type, dict[str, Any]]]] = {
    "environment_factory": by_factory,
    "rollout_func": by_rollout_func,
}
