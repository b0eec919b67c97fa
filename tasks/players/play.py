"""Plays evaluation episodes with a local model, in batches, or with an endpoint, one by one.

In: an environment pool, questions, a protocol. Out: each episode as a record, as soon as it ends.

Evaluation protocols, that is prompt and parser: parity with training, or the public tutorial's.

Generates a checkpoint's answers for batches of episodes.

In: a checkpoint's folder, decoding settings, episodes. Out: one message per episode, parsed as in GRPO. Sampling is
seeded by question, sample and turn, so an answer does not depend on its batch.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.artifacts.foreign import Trusted
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.episodes.drafts import Drafts
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.example import drafts_of
from apprentice.tasks.episodes.record import EvaluatedEpisode, as_text, with_arguments
from apprentice.tasks.episodes.rendering import chat_format, parse, prompt_ids
from apprentice.tasks.episodes.thinking import thinking_of
from apprentice.tasks.models.checkpoints import load_model
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.memory import round_weights
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.players.thought_budget import Thoughts, TurnStart, within_budget
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, TeacherRefused, TeacherUnavailable
from apprentice.tasks.settings.spec import EvaluateSpec

CANNOT_SEE = (
    "This is the tutorial's protocol, for comparison with its figures only. It shows the model no tools, reads the "
    "answer with a regular expression that ignores minus signs, accepts any last number as an answer, and counts "
    "partial credit as accuracy. A perfect player scores 68% on the tutorial's 50 questions (seed 999)."
)
TUTORIAL_TOKENS = 64


class Parity:
    """The prompt and the parser of training."""

    name: Literal["parity", "tutorial"] = "parity"

    def begin(self, player: Player, seed: int) -> Episode:
        """A new episode. Raises SessionLost."""
        return Episode(player, seed)

    def tokens(self, limit: int) -> int:
        """Maximum new tokens of a turn."""
        return limit

    def prompt_ids(self, tokenizer: Any, episode: Episode) -> list[int]:
        return prompt_ids(tokenizer, episode.messages, episode.tools)

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Episode) -> Message:
        return parse(tokenizer, ids, prefix, episode.tools)

    def accuracy(self, records: list[EvaluatedEpisode]) -> float:
        return sum(record.is_right for record in records) / len(records)


class Tutorial(Parity):
    """The tutorial's evaluation as printed, with the environment's instructions as its system prompt."""

    name: Literal["parity", "tutorial"] = "tutorial"

    def begin(self, player: Player, seed: int) -> Episode:
        """A new episode. Raises SessionLost; Stop for an environment with other tools than `answer`."""
        return TutorialEpisode(player, seed)

    def tokens(self, limit: int) -> int:
        return TUTORIAL_TOKENS

    def prompt_ids(self, tokenizer: Any, episode: Episode) -> list[int]:
        return tokenizer.apply_chat_template(
            episode.messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Episode) -> Message:
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}

    def accuracy(self, records: list[EvaluatedEpisode]) -> float:
        """The mean score, which the tutorial calls accuracy."""
        return sum(record.score for record in records) / len(records)


class TutorialEpisode(Episode):
    """An episode of one text; submits the digits that it finds there, whatever else the text contains."""

    def __init__(self, player: Player, seed: int):
        super().__init__(player, seed)
        if [tool["function"]["name"] for tool in self.tools] != ["answer"]:
            raise Stop(
                "The tutorial's protocol supports only environments with the single tool `answer`; this one has "
                f"{', '.join(tool['function']['name'] for tool in self.tools)}.",
                "Use --protocol parity.",
            )
        self.tools = []

    def step(self, message: Message) -> None:
        """Submits the answer found in the model's text. Raises SessionLost."""
        message = self._taken(message)
        digits = re.search(r'"answer"\s*:\s*"?(\d+)"?', message["content"])
        numbers = re.findall(r"\b(\d+)\b", message["content"])
        if not digits:
            self.causes.append("the regular expression found no answer")
        self._execute("answer", {"answer": digits.group(1) if digits else numbers[-1] if numbers else "0"})
        self.done = True


PROTOCOLS: dict[str, Parity] = {"parity": Parity(), "tutorial": Tutorial()}


Keep = Callable[[EvaluatedEpisode], None]


class Play(NamedTuple):
    """One episode to play."""

    place: int
    seed: int
    question: str
    sample: int


def plays_of(rows: list[dict[str, Any]], samples: int) -> list[Play]:
    """Each question `samples` times, from rows with seed and question."""
    named = ((row["seed"], row["question"], sample) for row in rows for sample in range(samples))
    return [Play(place, *each) for place, each in enumerate(named)]


class Policy(Protocol):
    """Anything that answers episodes: a local model or an endpoint."""

    def reply(self, episodes: list[Episode]) -> list[Message]: ...


def play_batched(pool: EnvironmentPool, plays: Sequence[Play], policy: Policy, protocol: Parity, keep: Keep) -> None:
    """Plays all episodes, as many at once as the server grants sessions, and generates each turn in one batch.

    A finished episode is replaced at once, so batches stay full; questions of similar length share a batch, which saves
    padding. Results do not depend on the batch size. Raises SessionLost, Stop.
    """
    ahead = sorted(plays, key=lambda play: len(play.question))  # plays the longest first, which needs most memory
    running: dict[int, tuple[Play, Episode]] = {}
    while ahead or running:
        idle = [place for place in range(len(pool.players)) if place not in running]
        starting = [(place, ahead.pop()) for place in pool.playable(idle, len(ahead))]
        started = pool.together(
            lambda n: protocol.begin(pool.players[starting[n][0]], starting[n][1].seed),  # noqa: B023
            len(starting),
        )
        for (_, play), episode in zip(starting, started, strict=True):
            episode.check_question(play.question)
            episode.sample = play.sample
        running |= {slot: (play, episode) for (slot, play), episode in zip(starting, started, strict=True)}
        episodes = [episode for _, episode in running.values()]
        replies = policy.reply(episodes)
        pool.together(lambda n: episodes[n].step(replies[n]), len(episodes))  # noqa: B023
        for slot, (play, episode) in list(running.items()):
            if episode.done:
                keep(as_record(episode, play))
                del running[slot]


def play_alone(
    pool: EnvironmentPool, plays: Sequence[Play], policy: Policy, protocol: Parity, keep: Keep
) -> list[EvaluatedEpisode]:
    """Plays all episodes independently, as many at once as the pool has sessions.

    Returns those that the endpoint did not answer within its patience while it answered others; `broken` says why.
    Raises SessionLost, Stop.
    """
    unanswered: list[EvaluatedEpisode] = []

    def play_one(player: Player, play: Play) -> tuple[EvaluatedEpisode, bool]:
        episode, was_answered = protocol.begin(player, play.seed), True
        episode.check_question(play.question)
        try:
            while not episode.done:
                episode.player.wait_for_server()  # do not buy a turn that cannot be played
                episode.step(policy.reply([episode])[0])
        except TeacherRefused as refused:
            episode.broken = str(refused)
        except TeacherUnavailable as away:
            episode.broken, was_answered = str(away), False
        return as_record(episode, play), was_answered

    for _, (record, was_answered) in pool.map(play_one, plays):
        if was_answered:
            keep(record)
        else:
            unanswered.append(record)
    return unanswered


def as_record(episode: Episode, play: Play) -> EvaluatedEpisode:
    """The record of a finished episode."""
    assert episode.reward is not None or episode.broken
    environment = episode.player
    return EvaluatedEpisode(
        **play._replace(question=episode.question)._asdict(),
        messages=with_arguments(episode.messages, as_text),
        turns=sum(message["role"] == "assistant" for message in episode.messages),
        reward=None if episode.broken else episode.reward,
        broken=episode.broken,
        valid=episode.valid,
        causes=episode.causes,
        unfinished=episode.unfinished,
        correct=environment.correct or "",
        traits=json.dumps(environment.slices(play.seed, episode.question), ensure_ascii=False),
        scores=json.dumps(environment.scores() if len(environment.streams) > 1 else {}),
        prompt_tokens=episode.prompt_tokens,
        completion_tokens=episode.completion_tokens,
    )


class Endpoint(NamedTuple):
    """An OpenAI-compatible endpoint as a player; its answers count unchanged, invalid calls included."""

    teacher: Teacher

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """One message per episode; counts its tokens. Raises TeacherFailed, TeacherUnavailable, Stop."""
        return list(map(self._say, episodes))

    def _say(self, episode: Episode) -> Message:
        spent = Spent(raw=episode.wire)
        message = self.teacher.say(episode.messages, episode.tools, spent, "auto", episode.seed)
        episode.prompt_tokens += spent.prompt_tokens
        episode.completion_tokens += spent.completion_tokens
        return message


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
        thinking = thinking_of(self._tokenizer) if protocol.name == "parity" else None
        self._answer = protocol.tokens(spec.max_new_tokens)
        self._budget = None  # tokens after which a thought is ended; None for no end but its own
        if thinking and (spec.thought_budget is not None or spec.swapped_thoughts):
            share = 1.0 if spec.thought_budget is None else spec.thought_budget
            self._budget = round(thinking.max_tokens * share)
        self._thoughts = Thoughts() if spec.swapped_thoughts else None
        self._generation, self._one_by_one = (
            GenerationConfig(
                max_new_tokens=self._answer + (thinking.max_tokens if thinking else 0),
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

        starts = [TurnStart(each.messages, each.tools, ids) for each, ids in zip(episodes, prompts, strict=True)]
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
