"""All access to private members of TRL and transformers.

In: trainers and their arguments. Out: what their public interfaces lack. Checked with trl 1.16.0 and transformers
5.23.0; after an upgrade, check these members and run tests/tasks/test_one_prompt.py and tests/tasks/training.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

Ids = list[list[int]]
Generated = tuple[Ids, Any]
"""Token ids, and their log-probabilities or None."""


def tokenizer_of(trainer: Any) -> Any:
    """trl `GRPOTrainer._tokenizer`: the tokenizer within a processor. Without it, a multimodal processing class would
    render other ids than TRL does."""
    return trainer._tokenizer


def generate(trainer: Any, prompts: Ids, generations: int) -> Generated:
    """trl `GRPOTrainer._generate_single_turn`: completions from the trainer's engine and sampling settings. Without it,
    later turns and `rollout_func` would need a second engine."""
    return trainer._generate_single_turn(prompts, None, {}, generations)


def tool_reply_ids(trainer: Any, replies: list[dict[str, Any]]) -> list[int]:
    """trl `GRPOTrainer._get_tool_suffix_ids`: the ids that TRL's loop inserts between two turns. Without it, a
    concatenated episode has other ids than the same episode rendered as a whole (law 1)."""
    return trainer._get_tool_suffix_ids(replies)


def load_weights(trainer: Any, checkpoint: Path) -> None:
    """transformers `Trainer._load_from_checkpoint`: loads the weights only, also of wrapped or sharded models. The
    public method resumes a training."""
    trainer._load_from_checkpoint(str(checkpoint))


def save_checkpoint(trainer: Any) -> None:
    """transformers `Trainer._save_checkpoint`: saves a checkpoint of the last finished step now. The public interface
    saves at intervals only, so a lost environment would cost the steps since then."""
    trainer._save_checkpoint(trainer.model, trial=None)


def forget_loss(trainer: Any) -> None:
    """transformers `Trainer._tr_loss`: resets the running loss. Without it, one NaN stays in every later mean."""
    trainer._tr_loss.zero_()


def use_one_gpu(config: Any) -> None:
    """transformers `TrainingArguments._n_gpu`: limits a process to one GPU. Without it, transformers splits a batch
    over all visible GPUs, which TRL does not support."""
    config._n_gpu = 1


def episode_trainer(begin: Callable[[Any], None], play: Callable[..., Any]) -> type:
    """A GRPOTrainer with our tool loop: trl `_generate_and_score_completions` and `_tool_call_loop`.

    Calls `begin(rows)` before a step generates, and `play(trainer, prompt_ids, completion_ids, logprobs)` instead of
    TRL's loop, which calls tools sequentially and generates one turn beyond the end of an episode (law 6).
    """
    from trl import GRPOTrainer

    class EpisodeTrainer(GRPOTrainer):
        """TRL's trainer, but the environment ends an episode, and all rollouts of a turn are stepped concurrently."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            begin(inputs)
            return super()._generate_and_score_completions(inputs)

        def _tool_call_loop(
            self,
            prompts: Any,
            prompt_ids: Any,
            completion_ids: Any,
            completions: Any,
            logprobs: Any,
            images: Any,
            multimodal_fields: Any,
        ) -> Any:
            played = play(self, prompt_ids, completion_ids, logprobs)
            no_images: list[Any] = [[] for _ in prompts]
            counts = played.calls, played.wrong_calls
            return played.mask, played.messages, played.completion_ids, played.logprobs, *counts, no_images

    return EpisodeTrainer


def batching_trainer(trainer_class: Any, rounded: Callable[[Any], AbstractContextManager[None]]) -> type:
    """A trainer that is safe with transformers' continuous batching: trl `_generate_single_turn`.

    Fixes two problems of TRL 1.16: with bf16 it rounds the optimizer's weights permanently before it generates (law 12;
    `rounded(trainer)` restores them), and it treats a failed request as an empty completion (law 5).
    """

    class BatchingTrainer(trainer_class):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            with rounded(self):
                ids, logprobs = super()._generate_single_turn(prompt_ids, *given, **named)
            if len(ids) != len(prompt_ids) or not all(ids):
                raise RuntimeError(
                    f"Continuous batching gave {sum(map(bool, ids))} completions for {len(prompt_ids)} prompts; see "
                    "its message above."
                )
            return ids, logprobs

    return BatchingTrainer
