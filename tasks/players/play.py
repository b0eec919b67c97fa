"""Plays evaluation episodes with a local model, in batches, or with an endpoint, one by one.

In: an environment pool, questions, a protocol. Out: each episode as a record, as soon as it ends.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from apprentice.envs.base import ToolEnvironment, traits_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.record import EvaluatedEpisode, as_text, with_arguments
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting.errors import TeacherRefused

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


class Player(Protocol):
    """Anything that answers episodes: a local model or an endpoint."""

    def reply(self, episodes: list[Episode]) -> list[Message]: ...


def play_batched(pool: EnvironmentPool, plays: Sequence[Play], player: Player, protocol: Parity, keep: Keep) -> None:
    """Plays all episodes, as many at once as the server grants sessions, and generates each turn in one batch.

    A finished episode is replaced at once, so batches stay full; questions of similar length share a batch, which saves
    padding. Results do not depend on the batch size. Raises SessionLost, Stop.
    """
    ahead = sorted(plays, key=lambda play: len(play.question))  # plays the longest first, which needs most memory
    running: dict[int, tuple[Play, Episode]] = {}
    while ahead or running:
        idle = [place for place in range(len(pool.environments)) if place not in running]
        starting = [(place, ahead.pop()) for place in pool.playable(idle, len(ahead))]
        begun = pool.together(
            lambda n: protocol.begin(pool.environments[starting[n][0]], starting[n][1].seed),  # noqa: B023
            len(starting),
        )
        for (_, play), episode in zip(starting, begun, strict=True):
            episode.check_question(play.question)
            episode.sample = play.sample
        running |= {slot: (play, episode) for (slot, play), episode in zip(starting, begun, strict=True)}
        episodes = [episode for _, episode in running.values()]
        replies = player.reply(episodes)
        pool.together(lambda n: episodes[n].step(replies[n]), len(episodes))  # noqa: B023
        for slot, (play, episode) in list(running.items()):
            if episode.done:
                keep(as_record(episode, play))
                del running[slot]


def play_alone(pool: EnvironmentPool, plays: Sequence[Play], player: Player, protocol: Parity, keep: Keep) -> None:
    """Plays all episodes independently, as many at once as the pool has sessions. Raises SessionLost, Stop."""

    def play_one(environment: ToolEnvironment, play: Play) -> EvaluatedEpisode:
        episode = protocol.begin(environment, play.seed)
        episode.check_question(play.question)
        try:
            while not episode.done:
                episode.environment._wait_for_server()  # do not buy a turn that cannot be played
                episode.step(player.reply([episode])[0])
        except TeacherRefused as refused:
            episode.broken = str(refused)
        return as_record(episode, play)

    for _, record in pool.map(play_one, plays):
        keep(record)


def as_record(episode: Episode, play: Play) -> EvaluatedEpisode:
    """The record of a finished episode."""
    assert episode.reward is not None or episode.broken
    environment = episode.environment
    return EvaluatedEpisode(
        place=play.place,
        seed=play.seed,
        sample=play.sample,
        question=episode.question,
        messages=with_arguments(episode.messages, as_text),
        turns=sum(message["role"] == "assistant" for message in episode.messages),
        reward=None if episode.broken else episode.reward,
        broken=episode.broken,
        valid=episode.valid,
        causes=episode.causes,
        unfinished=episode.unfinished,
        correct=environment.correct or "",
        traits=json.dumps(traits_of(environment, play.seed, episode.question), ensure_ascii=False),
        scores=json.dumps(environment._scores() if len(environment.streams) > 1 else {}),
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
