"""Who is examined: a local model that answers a batch of episodes, or an endpoint that answers each by itself.

In: an environment pool, questions, a protocol. Out: each played episode as a record, as soon as it ends.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from apprentice.envs.base import ToolEnvironment, traits_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episode import Episode, Message
from apprentice.tasks.errors import Stop
from apprentice.tasks.protocols import Parity
from apprentice.tasks.record import Examined, with_texts
from apprentice.tasks.rendering import load_tokenizer
from apprentice.tasks.specs import EvaluateSpec
from apprentice.tasks.student import load_model
from apprentice.tasks.teacher import Spent, Teacher
from apprentice.tasks.trust import Trusted

Keep = Callable[[Examined], None]


class Play(NamedTuple):
    """One episode that is to be played."""

    place: int
    seed: int
    question: str
    sample: int


def plays_of(rows: list[dict[str, Any]], samples: int) -> list[Play]:
    """Every question `samples` times, from rows with seed and question."""
    named = ((row["seed"], row["question"], sample) for row in rows for sample in range(samples))
    return [Play(place, *each) for place, each in enumerate(named)]


class Speaker(Protocol):
    """Anything that says the next message in each of many episodes."""

    def reply(self, episodes: list[Episode]) -> list[Message]: ...


def play_batched(pool: EnvironmentPool, plays: Sequence[Play], speaker: Speaker, protocol: Parity, keep: Keep) -> None:
    """Plays all, as many at a time as the pool has environments, every turn of those generated together.

    A place whose episode ended takes the next one at once, so that batches stay full where episodes end at different
    turns; questions of like length meet in a batch, so that little is padded. Raises SessionLost, Stop.
    """
    ahead = sorted(plays, key=lambda play: len(play.question))  # the longest is played first: it needs most memory
    idle = list(range(len(pool.environments)))
    running: dict[int, tuple[Play, Episode]] = {}
    while ahead or running:
        starting = [(idle.pop(), ahead.pop()) for _ in range(min(len(idle), len(ahead)))]
        begun = pool.together(
            lambda n: protocol.begin(pool.environments[starting[n][0]], starting[n][1].seed),  # noqa: B023
            len(starting),
        )
        for (_, play), episode in zip(starting, begun, strict=True):
            check_question(play, episode)
            episode.sample = play.sample
        running |= {slot: (play, episode) for (slot, play), episode in zip(starting, begun, strict=True)}
        episodes = [episode for _, episode in running.values()]
        replies = speaker.reply(episodes)
        pool.together(lambda n: episodes[n].hear(replies[n]), len(episodes))  # noqa: B023
        for slot, (play, episode) in list(running.items()):
            if episode.done:
                keep(as_record(episode, play))
                idle.append(slot)
                del running[slot]


def play_alone(pool: EnvironmentPool, plays: Sequence[Play], speaker: Speaker, protocol: Parity, keep: Keep) -> None:
    """Plays all, each episode for itself, as many at once as the pool has sessions. Raises SessionLost, Stop."""

    def play_one(environment: ToolEnvironment, play: Play) -> Examined:
        episode = protocol.begin(environment, play.seed)
        check_question(play, episode)
        while not episode.done:
            episode.environment._wait_for_server()  # a turn that cannot be played is not bought
            episode.hear(speaker.reply([episode])[0])
        return as_record(episode, play)

    for _, record in pool.map(play_one, plays):
        keep(record)


def check_question(play: Play, episode: Episode) -> None:
    """Raises Stop when the server asks something else than when the questions were written down."""
    if episode.question != play.question:
        raise Stop(
            f"Under seed {play.seed} the server asks another question than when the questions were written down: "
            f"{episode.question[:80]!r}, not {play.question[:80]!r}. Its version has changed, and no model that was "
            "examined before can be compared with one that is examined now.",
            "Use the server's former version, or a store of its own for the new one (--set store.path=…).",
        )


def as_record(episode: Episode, play: Play) -> Examined:
    """What an ended episode leaves."""
    assert episode.reward is not None or episode.broken
    environment = episode.environment
    return Examined(
        place=play.place,
        seed=play.seed,
        sample=play.sample,
        question=episode.question,
        messages=with_texts(episode.messages),
        turns=sum(message["role"] == "assistant" for message in episode.messages),
        reward=episode.reward,
        broken=episode.broken,
        valid=episode.valid,
        causes=episode.causes,
        correct=environment.correct or "",
        traits=json.dumps(traits_of(environment, play.seed, episode.question), ensure_ascii=False),
    )


class LocalModel:
    """A checkpoint that answers a batch of episodes in one generation.

    Args:
        seed: Of sampled decoding.
        trusted: Whose Python code may be run.
    """

    def __init__(self, checkpoint: Path, spec: EvaluateSpec, protocol: Parity, seed: int, trusted: Trusted = ()):
        import torch
        from transformers import GenerationConfig

        self._protocol = protocol
        self._tokenizer = load_tokenizer(checkpoint, trusted)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_model(checkpoint, trusted).to(device).eval()
        # a cache of full length from the start: a growing one is copied at every token (a third of the time, here)
        is_static = getattr(self._model, "_can_compile_fullgraph", False)
        self._generation = GenerationConfig(
            max_new_tokens=protocol.tokens(spec.max_new_tokens),
            do_sample=False,  # sampling is ours, see _Sampled
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._tokenizer.pad_token_id,
            cache_implementation="static" if is_static else None,
            disable_compile=True,  # it would be compiled anew for every length of prompts
        )
        self._seed = seed
        self._temperature = spec.temperature if spec.decoding == "sampled" else None

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """The model's next message in every episode; shape: one message an episode."""
        import torch

        prompts = [self._protocol.prompt_ids(self._tokenizer, episode) for episode in episodes]
        inputs = self._tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        inputs = inputs.to(self._model.device)
        noise = [] if self._temperature is None else [self._noise(episodes)]
        with torch.inference_mode():
            out = self._model.generate(**inputs, generation_config=self._generation, logits_processor=noise)
        written = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [
            self._protocol.read(self._tokenizer, self._until_end(ids), prefix, episode)
            for ids, prefix, episode in zip(written, prompts, episodes, strict=True)
        ]

    def _noise(self, episodes: list[Episode]) -> Any:
        """Samples by the Gumbel-max trick: the likeliest token after noise of the episode's own is added, which is a
        sample at that temperature, and the same one in whatever batch, and after whatever interruption, it is played.

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
        end = self._tokenizer.eos_token_id
        return ids[: ids.index(end) + 1] if end in ids else ids


class Endpoint:
    """An OpenAI-compatible endpoint; what it says counts as it is, an invalid call as well."""

    def __init__(self, teacher: Teacher, spent: Spent):
        self._teacher = teacher
        self._spent = spent

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """One message an episode. Raises TeacherFailed, TeacherAway, Stop."""
        return [self._teacher.say(each.messages, each.tools, self._spent, "auto", each.seed) for each in episodes]
