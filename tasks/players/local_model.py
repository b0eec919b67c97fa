"""Generates a checkpoint's answers for batches of episodes.

In: a checkpoint's folder, decoding settings, episodes. Out: one message per episode, parsed as in GRPO. Sampling is
seeded by question, sample and turn, so an answer does not depend on its batch.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign.models import Trusted
from apprentice.tasks.episodes.drafts import Drafts
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import chat_format
from apprentice.tasks.episodes.thinking import thinking_of, turn_tokens
from apprentice.tasks.models.allocator import keep_freed_memory
from apprentice.tasks.models.checkpoints import load_model
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.memory import round_weights
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.players.thought_budget import Thoughts, TurnStart, within_budget
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
        keep_freed_memory()
        self._model = load_model(checkpoint, trusted).to(device).eval()
        if spec.bf16:
            round_weights(self._model)
        # a static cache: a growing one is copied at every token, which takes a third of the time here
        is_static = getattr(self._model, "_can_compile_fullgraph", False)
        thinking = thinking_of(self._tokenizer) if protocol.name == "parity" else None
        self._answer = protocol.tokens(spec.max_new_tokens)
        self._budget = None  # tokens after which a thought is ended; None for no end but its own
        if thinking and (spec.thought_budget is not None or spec.swapped_thoughts):
            share = 1.0 if spec.thought_budget is None else spec.thought_budget
            self._budget = round(thinking.max_tokens * share)
        self._thoughts = Thoughts() if spec.swapped_thoughts else None
        self._generation, self._one_by_one = (
            GenerationConfig(
                max_new_tokens=turn_tokens(self._answer, thinking),
                do_sample=False,  # _noise samples
                repetition_penalty=1.0,  # a checkpoint may name another one; GRPO samples without
                eos_token_id=list(self._ends),
                pad_token_id=self._tokenizer.pad_token_id,
                cache_implementation=cache,
                disable_compile=True,  # it would recompile for every prompt length
            )
            for cache in ("static" if is_static else None, None)
        )
        self._prefix = SharedPrefix(self._model, self._one_by_one)
        self._context = context_length(self._model.config)
        self._known_drafts: dict[str, Drafts] = {}
        self._warned = False
        self._seed = seed
        self._temperature = spec.temperature if spec.decoding == "sampled" else None

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """The model's next message for each episode, in order; counts its tokens."""
        prompts = [self._protocol.prompt_ids(self._tokenizer, episode) for episode in episodes]
        self._tell_if_cut([max(self._context - len(ids), 1) for ids in prompts])
        if self._budget is None:
            written = self._written(prompts, episodes, self._generation.max_new_tokens)
        else:
            written = self._within_budget(prompts, episodes, self._budget)
        for ids, prefix, episode in zip(written, prompts, episodes, strict=True):
            episode.prompt_tokens += len(prefix)
            episode.completion_tokens += len(ids)
        return [
            self._protocol.read(self._tokenizer, ids, prefix, episode)
            for ids, prefix, episode in zip(written, prompts, episodes, strict=True)
        ]

    def _written(
        self, prompts: list[list[int]], episodes: Sequence[Episode], most: int, part: str = ""
    ) -> list[list[int]]:
        """What the model writes after each prompt: at most so many tokens, and no more than its context has room for.

        Args:
            part: Which part of a turn it is, where one is written in several; samples depend on it.
        """
        import torch

        from apprentice.tasks.models.decoding import decode
        from apprentice.tasks.models.shared_prefix import rests

        noise = None if self._temperature is None else self._noise(episodes, part)
        rooms = [max(self._context - len(ids), 1) for ids in prompts]
        with torch.inference_mode():
            cache = self._prefix.cache(prompts, most)
            known = 0 if cache is None else cache.get_seq_length()
            inputs = rests(self._tokenizer, prompts, known, self._model.device)
            if cache is None:
                generation: dict[str, Any] = {"generation_config": self._generation}
                if noise:
                    generation["logits_processor"] = [lambda _, scores: noise(scores, range(len(scores)))]
            else:
                generation = {"generation_config": self._one_by_one, "past_key_values": cache}
                generation |= {"custom_generate": decode, "draft": self._drafts(episodes).after}
                if noise:
                    generation["draw"] = lambda scores, of, rows, *_: noise(scores[of], rows.tolist()).argmax(-1)
            out = self._model.generate(**inputs, **generation, max_new_tokens=most)
        new = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [self._until_end(ids)[:room] for ids, room in zip(new, rooms, strict=True)]

    def _within_budget(self, prompts: list[list[int]], episodes: list[Episode], budget: int) -> list[list[int]]:
        """The turns, with a thought of at most so many tokens."""

        def generate(ahead: list[list[int]], most: int, places: Sequence[int], answers: bool) -> list[list[int]]:
            return self._written(ahead, [episodes[place] for place in places], most, " answer" if answers else "")

        starts = [
            TurnStart(each.messages, each.tools, ids, each.player.takes_text)
            for each, ids in zip(episodes, prompts, strict=True)
        ]
        seeds = [episode.seed for episode in episodes]
        others = partial(self._thoughts.of_others, seeds) if self._thoughts else None
        return within_budget(generate, self._tokenizer, starts, budget, self._answer, others)

    def _drafts(self, episodes: Sequence[Episode]) -> Drafts:
        """Of all tools of a batch: a mixture's parts have their own."""
        tools = {json.dumps(tool): tool for episode in episodes for tool in episode.tools}
        name = "".join(sorted(tools))
        if name not in self._known_drafts:
            self._known_drafts[name] = drafts_of(self._tokenizer, [*tools.values()])
        return self._known_drafts[name]

    def _tell_if_cut(self, rooms: list[int]) -> None:
        """Says once that a prompt leaves fewer tokens than an answer may have; its answer ends with the context."""
        if not self._warned and (least := min(rooms)) < self._generation.max_new_tokens:
            self._warned = True
            announce.warn(
                f"A prompt of {self._context - least} tokens leaves {least} of {self._context} for its answer, and "
                f"evaluate.max_new_tokens is {self._generation.max_new_tokens}. Answers end with the context."
            )

    def _noise(self, episodes: Sequence[Episode], part: str = "") -> Callable[[Any, Sequence[int]], Any]:
        """Sampling with the Gumbel-max trick: greedy decoding over logits ÷ temperature + noise.

        Returns what makes such scores of those of some episodes (rows, vocabulary), given their places. The noise is
        seeded by episode, so samples depend neither on the batch nor on interruptions.
        https://arxiv.org/abs/1411.0030
        """
        import torch

        generators = []
        for episode in episodes:
            name = f"{self._seed} {episode.seed} {episode.sample} {episode.turns}{part}".encode()
            drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1
            generators.append(torch.Generator(device=self._model.device).manual_seed(drawn))

        def add(scores: Any, places: Sequence[int]) -> Any:
            exponential = torch.stack(
                [
                    torch.empty_like(row).exponential_(generator=generators[place])
                    for row, place in zip(scores, places, strict=True)
                ]
            )
            return scores / self._temperature - exponential.log()

        return add

    def _until_end(self, ids: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids))
        return ids[: end + 1]
