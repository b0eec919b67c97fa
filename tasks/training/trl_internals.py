"""Everything that reaches into what TRL and transformers keep private, in one place.

In: trainers and their arguments. Out: what their public interfaces do not offer. Read in trl 1.16.0 and transformers
5.23.0; after an upgrade read these again, and run tests/tasks/test_one_prompt.py and tests/tasks/training.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

Ids = list[list[int]]
Generated = tuple[Ids, Any]
"""Token ids, and their log-probabilities or None."""


def tokenizer_of(trainer: Any) -> Any:
    """trl `GRPOTrainer._tokenizer`: the tokenizer within a processor. Without it a multimodal processing class would
    render other ids than TRL does."""
    return trainer._tokenizer


def generate(trainer: Any, prompts: Ids, generations: int) -> Generated:
    """trl `GRPOTrainer._generate_single_turn`: completions by the engine and the sampling settings of the trainer.
    Without it later turns, and `rollout_func`, would need a second engine."""
    return trainer._generate_single_turn(prompts, None, {}, generations)


def tool_reply_ids(trainer: Any, replies: list[dict[str, Any]]) -> list[int]:
    """trl `GRPOTrainer._get_tool_suffix_ids`: what TRL's own loop puts between two turns. Without it a concatenated
    episode has other ids than the same one rendered whole (law 1)."""
    return trainer._get_tool_suffix_ids(replies)


def load_weights(trainer: Any, checkpoint: Path) -> None:
    """transformers `Trainer._load_from_checkpoint`: weights alone, in whatever way they are wrapped or sharded. The
    public way resumes a training."""
    trainer._load_from_checkpoint(str(checkpoint))


def save_checkpoint(trainer: Any) -> None:
    """transformers `Trainer._save_checkpoint`: a checkpoint of the last finished step now. The public way saves at
    intervals only, so a lost environment would cost the steps since."""
    trainer._save_checkpoint(trainer.model, trial=None)


def forget_loss(trainer: Any) -> None:
    """transformers `Trainer._tr_loss`: the running loss, from which it subtracts what was logged. Without this one NaN
    stays in every later mean."""
    trainer._tr_loss.zero_()


def use_one_gpu(config: Any) -> None:
    """transformers `TrainingArguments._n_gpu`: one process would spread a batch over all GPUs it sees, which TRL
    refuses."""
    config._n_gpu = 1


def episode_trainer(begin: Callable[[Any], None], play: Callable[..., Any]) -> type:
    """A GRPOTrainer whose tool loop is ours: trl `_generate_and_score_completions` and `_tool_call_loop`.

    `begin(rows)` before a step generates; `play(trainer, prompt_ids, completion_ids, logprobs)` in place of the loop.
    Without it TRL plays one tool call after another, and one turn beyond an episode's end (law 6).
    """
    from trl import GRPOTrainer

    class EpisodeTrainer(GRPOTrainer):
        """TRL's own, but that an episode ends when the environment says so, and all of a turn are stepped at once."""

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

    Mends two things of TRL 1.16: under bf16 it rounds the very weights that the optimizer steps before it generates
    (law 12; `rounded(trainer)` does that for a while only), and it takes a failed request for an empty completion
    (law 5).
    """

    class BatchingTrainer(trainer_class):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            with rounded(self):
                ids, logprobs = super()._generate_single_turn(prompt_ids, *given, **named)
            if len(ids) != len(prompt_ids) or not all(ids):
                raise RuntimeError(
                    f"Continuous batching gave {sum(map(bool, ids))} completions for {len(prompt_ids)} prompts; its "
                    "own message above says why."
                )
            return ids, logprobs

    return BatchingTrainer
