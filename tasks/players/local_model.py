"""Generates a checkpoint's answers for batches of episodes.

In: a checkpoint's folder, decoding settings, episodes. Out: one message per episode, parsed as in GRPO. Sampling is
seeded by question, sample and turn, so an answer does not depend on its batch.
"""

import hashlib
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign import Trusted
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.rendering import chat_format
from apprentice.tasks.models.checkpoints import context_length, load_model
from apprentice.tasks.models.memory import round_weights
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.players.play import Parity
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.spec import EvaluateSpec


class LocalModel:
    """A checkpoint that answers a batch of episodes in one generation.

    Args:
        seed: Seed of sampled decoding.
        trusted: Students whose custom code may run.
    """

    def __init__(self, checkpoint: Path, spec: EvaluateSpec, protocol: Parity, seed: int, trusted: Trusted = ()):
        import torch
        from transformers import GenerationConfig

        from apprentice.tasks.models.shared_prefix import SharedPrefix

        self._protocol = protocol
        self._tokenizer = load_tokenizer(checkpoint, trusted)
        self._ends = chat_format(self._tokenizer).ends
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_model(checkpoint, trusted).to(device).eval()
        if spec.bf16:
            round_weights(self._model)
        # a static cache: a growing one is copied at every token, which takes a third of the time here
        is_static = getattr(self._model, "_can_compile_fullgraph", False)
        self._generation, self._after_prefix = (
            GenerationConfig(
                max_new_tokens=protocol.tokens(spec.max_new_tokens),
                do_sample=False,  # _noise samples
                repetition_penalty=1.0,  # a checkpoint may name another one; GRPO samples without
                eos_token_id=list(self._ends),
                pad_token_id=self._tokenizer.pad_token_id,
                cache_implementation=cache,
                disable_compile=True,  # it would recompile for every prompt length
            )
            for cache in ("static" if is_static else None, None)
        )
        self._prefix = SharedPrefix(self._model, self._after_prefix)
        self._context = context_length(self._model.config)
        self._told = False
        self._seed = seed
        self._temperature = spec.temperature if spec.decoding == "sampled" else None

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """The model's next message for each episode, in order; counts its tokens."""
        import torch

        prompts = [self._protocol.prompt_ids(self._tokenizer, episode) for episode in episodes]
        noise = [] if self._temperature is None else [self._noise(episodes)]
        rooms = [max(self._context - len(ids), 1) for ids in prompts]
        self._tell_if_cut(rooms)
        with torch.inference_mode():
            cache = self._prefix.cache(prompts, self._generation.max_new_tokens)
            if cache is None:
                inputs, generation = self._inputs(prompts, 0), self._generation
            else:
                inputs, generation = self._inputs(prompts, cache.get_seq_length()), self._after_prefix
                inputs["past_key_values"] = cache
            out = self._model.generate(**inputs, generation_config=generation, logits_processor=noise)
        new = out[:, inputs["input_ids"].shape[1] :].tolist()
        written = [self._until_end(ids)[:room] for ids, room in zip(new, rooms, strict=True)]
        for ids, prefix, episode in zip(written, prompts, episodes, strict=True):
            episode.prompt_tokens += len(prefix)
            episode.completion_tokens += len(ids)
        return [
            self._protocol.read(self._tokenizer, ids, prefix, episode)
            for ids, prefix, episode in zip(written, prompts, episodes, strict=True)
        ]

    def _tell_if_cut(self, rooms: list[int]) -> None:
        """Says once that a prompt leaves fewer tokens than an answer may have; its answer ends with the context."""
        if not self._told and (least := min(rooms)) < self._generation.max_new_tokens:
            self._told = True
            announce.warn(
                f"A prompt of {self._context - least} tokens leaves {least} of {self._context} for its answer, and "
                f"evaluate.max_new_tokens is {self._generation.max_new_tokens}. Answers end with the context."
            )

    def _inputs(self, prompts: list[list[int]], known: int) -> Any:
        """What follows the first `known` tokens of each prompt, padded between both; the mask covers all."""
        import torch

        rests = {"input_ids": [ids[known:] for ids in prompts]}
        inputs = self._tokenizer.pad(rests, padding_side="left", return_tensors="pt").to(self._model.device)
        inputs["attention_mask"] = torch.nn.functional.pad(inputs["attention_mask"], (known, 0), value=1)
        return inputs

    def _noise(self, episodes: list[Episode]) -> Any:
        """A logits processor that samples with the Gumbel-max trick: greedy decoding over logits ÷ temperature + noise.

        The noise is seeded by episode, so samples depend neither on the batch nor on interruptions.
        https://arxiv.org/abs/1411.0030
        """
        import torch

        generators = []
        for episode in episodes:
            name = f"{self._seed} {episode.seed} {episode.sample} {episode.turns}".encode()
            drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1
            generators.append(torch.Generator(device=self._model.device).manual_seed(drawn))

        def add(_: Any, scores: Any) -> Any:
            exponential = torch.stack(
                [torch.empty_like(row).exponential_(generator=own) for row, own in zip(scores, generators, strict=True)]
            )
            return scores / self._temperature - exponential.log()

        return add

    def _until_end(self, ids: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids))
        return ids[: end + 1]
