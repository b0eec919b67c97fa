"""All access to private members of TRL and transformers.

In: trainers and their arguments. Out: what their public interfaces lack. Checked with trl 1.16.0 and transformers
5.23.0; after an upgrade, check these members and run tests/tasks/test_one_prompt.py and tests/tasks/training.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS, chat_format

Ids = list[list[int]]
Generated = tuple[Ids, Any]  # token ids, and their log-probabilities or None


def tokenizer_of(trainer: Any) -> Any:
    """trl `GRPOTrainer._tokenizer`: the tokenizer within a multimodal processor, which would render other ids."""
    return trainer._tokenizer


def generate(trainer: Any, prompts: Ids, generations: int) -> Generated:
    """trl `GRPOTrainer._generate_single_turn`: completions from the trainer's engine and sampling settings. Without it,
    later turns and `rollout_func` would need a second engine."""
    return trainer._generate_single_turn(prompts, None, {}, generations)


def reply_ids(tokenizer: Any, replies: list[dict[str, Any]], trainer: Any = None) -> list[int]:
    """trl `GRPOTrainer._get_tool_suffix_ids`: the ids that TRL's loop inserts between two turns. Without it, a
    concatenated episode has other ids than the same episode rendered as a whole (law 1).

    TRL takes the tokenizer's end token for the one that ends a call; in some families it is another.

    Args:
        trainer: None before there is one. Then raises ValueError where the template changes earlier turns.
    """
    from trl import GRPOTrainer

    processing_class = trainer.processing_class if trainer else tokenizer
    stand_in: Any = SimpleNamespace(
        processing_class=processing_class,
        chat_template=trainer.chat_template if trainer else None,
        chat_template_kwargs=TEMPLATE_ARGUMENTS,
        _tokenizer=SimpleNamespace(eos_token_id=chat_format(tokenizer).call_end),
        _is_vlm=processing_class is not tokenizer,
    )
    return GRPOTrainer._get_tool_suffix_ids(stand_in, replies)


def call_back(trainer: Any, **events: Callable[..., None]) -> None:
    """Adds a callback that calls a function at each of these events of transformers."""
    from transformers import TrainerCallback

    methods = {name: staticmethod(event) for name, event in events.items()}
    trainer.add_callback(type("Events", (TrainerCallback,), methods)())


def load_weights(trainer: Any, checkpoint: Path) -> None:
    """transformers `Trainer._load_from_checkpoint`: weights only, wrapped or sharded; the public method resumes."""
    trainer._load_from_checkpoint(str(checkpoint))


def save_checkpoint(trainer: Any) -> None:
    """transformers `Trainer._save_checkpoint`: saves a checkpoint of the last finished step now. The public interface
    saves at intervals only, so a lost environment would cost the steps since then."""
    trainer._save_checkpoint(trainer.model, trial=None)


def forget_loss(trainer: Any) -> None:
    """transformers `Trainer._tr_loss`: resets the running loss. Without it, one NaN stays in every later mean."""
    trainer._tr_loss.zero_()


def on_one_gpu(config: Any) -> Any:
    """transformers `TrainingArguments._n_gpu`: one GPU a process. TRL does not support a batch that is split."""
    if config.world_size == 1 and config.n_gpu > 1:
        config._n_gpu = 1
    return config


def attention_of(model: Any) -> str:
    """transformers `PreTrainedConfig._attn_implementation`: the attention in use. Public methods name the default."""
    return model.config._attn_implementation


def fuse_head(model: Any) -> None:
    """trl `add_fused_lm_head`: lets a model return log-probabilities and entropies, as GRPOTrainer's does."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))


def fit_head_to_caches() -> None:
    """trl `_CHUNKED_LOGPROB_CHUNK_SIZE`: a fused head's columns at once. A CPU's caches do not hold 32,768."""
    import torch
    from trl.trainer import utils

    if not torch.cuda.is_available():
        utils._CHUNKED_LOGPROB_CHUNK_SIZE = 4096


def show_schemas(trainer: Any) -> None:
    """trl `GRPOTrainer._env_tools`: what the prompt shows of each environment's tools. TRL would render the methods
    themselves, with a `return` that no server shows (law 1)."""
    trainer._env_tools = {name: tools[0].__self__.schemas for name, tools in trainer._env_tools.items()}


def online_trainer() -> type:
    """TRL's trainer of GRPO as it is."""
    from trl import GRPOTrainer

    return GRPOTrainer


PARSERS = "response_template", "response_schema"  # where transformers keeps a tokenizer's parser of completions


def episode_trainer(begin: Callable[[Any], None], play: Callable[..., Any]) -> type:
    """A GRPOTrainer with our tool loop: trl `_generate_and_score_completions`, `_generate`, `_tokenize_prompts` and
    `_tool_call_loop`.

    Calls `begin(rows)` before it generates, and `play(trainer, prompt_ids, completion_ids, logprobs)` instead of TRL's
    loop, which calls tools sequentially and generates one turn beyond the end of an episode (law 6). TRL renders
    the prompt of every rollout, looks up its environment's methods, and parses every completion, one at a time; here a
    group's prompt is rendered once, and only `play` calls and parses.
    """
    from trl import GRPOTrainer

    class EpisodeTrainer(GRPOTrainer):
        """TRL's trainer, but the environment ends an episode, and all rollouts of a turn are stepped concurrently."""

        _parsers: dict[str, Any]
        _rows: Any
        _tools: Any

        def __init__(self, *given: Any, **named: Any):
            super().__init__(*given, **named)
            show_schemas(self)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            """Hides the tools up to the generation, so that TRL does not look them up in every environment."""
            self._rows, self._tools, self.tools = inputs, self.tools, []
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                self.tools = self._tools

        def _generate(self, prompts: Any) -> Any:
            """Hides the tokenizer's parser from TRL up to the tool loop, so that TRL decodes and does not parse."""
            self.tools = self._tools
            begin(self._rows)
            self._parsers = {name: vars(self._tokenizer)[name] for name in PARSERS if name in vars(self._tokenizer)}
            self._set_parsers(dict.fromkeys(self._parsers))
            try:
                return super()._generate(prompts)
            finally:
                self._set_parsers(self._parsers)

        def _set_parsers(self, parsers: dict[str, Any]) -> None:
            for name, parser in parsers.items():
                setattr(self._tokenizer, name, parser)

        def _tokenize_prompts(self, prompts: Any) -> Any:
            environments = self._batch_environments
            rows = list(zip(prompts, environments, strict=True))
            firsts = [n for n, row in enumerate(rows) if n == 0 or row != rows[n - 1]]
            self._batch_environments = [environments[n] for n in firsts]
            ids, images, multimodal = super()._tokenize_prompts([prompts[n] for n in firsts])
            self._batch_environments = environments
            if images or multimodal:
                return super()._tokenize_prompts(prompts)
            lengths = [end - begin for begin, end in zip(firsts, [*firsts[1:], len(rows)], strict=True)]
            return [each for each, length in zip(ids, lengths, strict=True) for _ in range(length)], images, multimodal

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
            self._set_parsers(self._parsers)
            played = play(self, prompt_ids, completion_ids, logprobs)
            no_images: list[Any] = [[] for _ in prompts]
            counts = played.calls, played.wrong_calls
            return played.mask, played.messages, played.completion_ids, played.logprobs, *counts, no_images

    return EpisodeTrainer


def rounding_trainer(trainer_class: Any, rounded: Callable[[Any], AbstractContextManager[None]]) -> type:
    """A trainer that generates within `rounded(trainer)`: trl `_generate_single_turn`."""

    class RoundingTrainer(trainer_class):
        def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
            with rounded(self):
                return super()._generate_single_turn(*given, **named)

    return RoundingTrainer


def batching_trainer(trainer_class: Any, rounded: Callable[[Any], AbstractContextManager[None]]) -> type:
    """A trainer that is safe with transformers' continuous batching: trl `_generate_single_turn`.

    Fixes two problems of TRL 1.16: with bf16 it rounds the optimizer's weights permanently before it generates (law 12;
    `rounded(trainer)` restores them), and it treats a failed request as an empty completion (law 5).
    """

    class BatchingTrainer(rounding_trainer(trainer_class, rounded)):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            ids, logprobs = super()._generate_single_turn(prompt_ids, *given, **named)
            if len(ids) != len(prompt_ids) or not all(ids):
                raise RuntimeError(
                    f"Continuous batching gave {sum(map(bool, ids))} completions for {len(prompt_ids)} prompts; see "
                    "its message above."
                )
            return ids, logprobs

    return BatchingTrainer


def colocating_trainer(trainer_class: Any, dtype: str) -> type:
    """A trainer whose vLLM computes in the trainer's own type: trl `vllm_generation.LLM`. TRL names none, so vLLM takes
    bf16 for fp32 weights, and its log-probabilities differ from the trainer's a thousand times as much."""

    class ColocatingTrainer(trainer_class):
        def __init__(self, *given: Any, **named: Any):
            from trl.generation import vllm_generation

            engine = vllm_generation.LLM
            vllm_generation.LLM = partial(engine, dtype=dtype)
            try:
                super().__init__(*given, **named)
            finally:
                vllm_generation.LLM = engine

    return ColocatingTrainer


class Refill(Protocol):
    """Decides what `refilling_trainer` asks and keeps, the same in every process, as `sampling.ByRewards` does."""

    def first(self, trainer: Any) -> list[dict[str, Any]]: ...
    def further(self, trainer: Any, rewards: Any) -> list[dict[str, Any]]: ...
    def filled(self, trainer: Any, rewards: Any) -> list[int]: ...
    def finished(self, trainer: Any, rewards: Any) -> dict[str, float]: ...


def refilling_trainer(trainer_class: Any, refill: Refill) -> type:
    """A trainer that plays given questions, further ones in a step, and keeps some rollouts: trl
    `_generate_and_score_completions`, `_generate`, `_calculate_rewards` and `_metrics`. TRL's advantages,
    log-probabilities and token counts depend on the whole batch. So TRL does a last pass over the kept rollouts, which
    it receives instead of generating and scoring them.

    TRL's metrics are those of the first questions, as without refill.
    """
    from accelerate.utils import gather_object
    from torch import cat

    class RefillingTrainer(trainer_class):
        _is_last_pass = False
        _generated: Any
        _rewards: Any

        def _generate(self, prompts: Any) -> Any:
            if not self._is_last_pass:
                self._generated = super()._generate(prompts)
            return self._generated

        def _calculate_rewards(self, *given: Any) -> Any:
            if not self._is_last_pass:
                self._rewards = super()._calculate_rewards(*given)
            return self._rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            if not self.model.training:
                return super()._generate_and_score_completions(inputs)
            inputs = self._share(refill.first(self))
            batch = super()._generate_and_score_completions(inputs)
            metrics, self._metrics["train"] = self._metrics["train"], defaultdict(list)
            rewards, rounds = self._rewards, [_rollouts(inputs, self._generated)]
            try:
                while rows := refill.further(self, rewards):
                    own = self._share(rows)
                    super()._generate_and_score_completions(own)
                    rewards = cat([rewards, self._rewards])
                    rounds.append(_rollouts(own, self._generated))
                if len(rounds) > 1:
                    played = [rollout for each in rounds for rollout in gather_object(each)]
                    kept = refill.filled(self, rewards)
                    inputs, self._generated = _as_generated([played[n] for n in self._share(kept)])
                    self._rewards, self._is_last_pass = rewards[kept], True
                    batch = super()._generate_and_score_completions(inputs)
            finally:
                self._metrics["train"], self._is_last_pass = metrics, False
            metrics["num_tokens"] = [self.state.num_input_tokens_seen]
            for name, value in refill.finished(self, rewards).items():
                metrics[name].append(value)
            return batch

        def _share(self, rows: list[Any]) -> list[Any]:
            """This process's part, in TRL's order."""
            count = len(rows) // self.accelerator.num_processes
            begin = self.accelerator.process_index * count
            return rows[begin : begin + count]

    return RefillingTrainer


def _rollouts(inputs: list[Any], generated: Any) -> list[tuple[Any, ...]]:
    """What trl `_generate` returned, by rollout: dataset row, prompt ids, completion ids, tool mask, messages and
    log-probabilities. Its other values are images, which no environment has, and columns that TRL merged into rows."""
    columns = ([None] * len(inputs) if column is None else column for column in generated[:5])
    return list(zip(inputs, *columns, strict=True))


def _as_generated(rollouts: list[tuple[Any, ...]]) -> tuple[list[Any], tuple[Any, ...]]:
    """The dataset rows, and what trl `_generate` would have returned for them."""
    inputs, *columns = map(list, zip(*rollouts, strict=True))
    return inputs, (*(None if column[0] is None else column for column in columns), {}, None, [])


WITH_SIGNAL = "with_signal"  # the prefix of metrics over the completions that a step learned from
OF_TOKENS = (  # TRL's tensors with a column for each token of a completion; the last one may have a single column
    *("completion_ids", "completion_mask", "tool_mask"),
    *("old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"),
)


def skipping_trainer(
    trainer_class: Any,
    signals_of: Callable[[Any, Any], Any],
    loss_share: Callable[[Any, float, float], float],
) -> type:
    """A trainer that learns from some rows only: trl `_calculate_rewards`, `_generate_and_score_completions`,
    `_compute_loss` and `_metrics`. Without them, rows whose gradient is zero take as long as others.

    `signals_of(trainer, rewards)` says which rows of all processes have a signal, None for no skipping;
    `loss_share(trainer, rows, tokens)` what the loss of the kept share of a batch is multiplied by. The metrics of the
    loss (entropy, clipping) cover the kept rows, and get the prefix `with_signal/`.
    """

    class SkippingTrainer(trainer_class):
        _scored: Any

        def _calculate_rewards(self, *given: Any) -> Any:
            self._scored = super()._calculate_rewards(*given)
            return self._scored

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            signals = signals_of(self, self._scored) if self.model.training else None
            if signals is not None:
                self._metrics["train"][f"{WITH_SIGNAL}/share"].append(signals.float().mean().item())
                begin = self.accelerator.process_index * len(inputs)
                batch[WITH_SIGNAL] = signals[begin : begin + len(inputs)]
            return batch

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            inputs = dict(inputs)  # TRL may pass the same batch again
            signals = inputs.pop(WITH_SIGNAL, None)
            if signals is None:
                return super()._compute_loss(model, inputs)
            alone = self.accelerator.distributed_type == "NO"
            most = int(signals.sum() if alone else self.accelerator.gather(signals.sum()).max())
            if alone and not most:
                return _zero_loss(model)
            kept = _kept_rows(inputs, signals, max(most, 1), self.pad_to_multiple_of or 1)
            share = loss_share(self, len(kept["advantages"]) / len(signals), _tokens(kept) / max(_tokens(inputs), 1))
            metrics, self._metrics["train"] = self._metrics["train"], defaultdict(list)
            loss = super()._compute_loss(model, kept) * share
            of_kept, self._metrics["train"] = self._metrics["train"], metrics
            for name, values in of_kept.items() if most else ():
                metrics[f"{WITH_SIGNAL}/{name}"] += values
            return loss

    return SkippingTrainer


def sharing_trainer(
    trainer_class: Any,
    can_share: Callable[[Any], bool],
    generating: Callable[..., AbstractContextManager[None]] | None,
    forward: Callable[[Any, int], Callable[..., Any]],
) -> type:
    """A trainer that computes shared prompts once: trl `_generate_single_turn`, `_get_per_token_logps_and_entropies`.

    Where `can_share(trainer)`: `generating(model, prompts, step=)` is entered while TRL generates, None for other ones;
    `forward(model, completion columns)` takes the model's place for TRL's log-probabilities.
    """

    class SharingTrainer(trainer_class):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            if generating is None or not can_share(self):
                return super()._generate_single_turn(prompt_ids, *given, **named)
            with generating(self.model, prompt_ids, step=self.state.global_step):
                return super()._generate_single_turn(prompt_ids, *given, **named)

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *given: Any, **named: Any
        ) -> Any:
            of_routers = named.get("compute_aux_loss", False)  # counted over every token of a batch
            shared = model if of_routers or not can_share(self) else forward(model, logits_to_keep)
            return super()._get_per_token_logps_and_entropies(
                shared, input_ids, attention_mask, logits_to_keep, *given, **named
            )

    return SharingTrainer


def _zero_loss(model: Any) -> Any:
    """A loss whose gradient is zero for every weight, as TRL's is for a batch without advantages."""
    return sum(weight.reshape(-1)[0] for weight in model.parameters() if weight.requires_grad) * 0.0


def _kept_rows(batch: dict[str, Any], signals: Any, count: int, multiple: int) -> dict[str, Any]:
    """`count` rows of a batch: those that have a signal, then others without loss. All processes need the same number:
    TRL gathers metrics of each row, and they forward a wrapped or sharded model at once. Columns that only left-out
    rows filled are cut, to a multiple of so many."""
    import torch

    with_signal = signals.nonzero().flatten()
    rows = torch.cat([with_signal, (~signals).nonzero().flatten()[: count - len(with_signal)]])
    kept = {name: tensor[rows] if tensor.ndim else tensor for name, tensor in batch.items()}
    if len(with_signal) < count:
        kept["tool_mask"] = kept.get("tool_mask", kept["completion_mask"]) * signals[rows].unsqueeze(1)
    columns, longest = batch["completion_ids"].size(1), int(kept["completion_mask"].sum(dim=1).max())
    needed = max(-(-longest // multiple), 1) * multiple
    cut = (name for name in OF_TOKENS if name in kept and kept[name].size(1) == columns)
    return kept | {name: kept[name][:, :needed] for name in cut}


def _tokens(batch: dict[str, Any]) -> int:
    return int((batch["completion_mask"] * batch.get("tool_mask", 1)).sum())
