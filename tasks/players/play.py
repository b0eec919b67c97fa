"""Plays evaluation episodes with a local model, in batches, or with an endpoint, one by one.

In: an environment pool, questions, a protocol. Out: each episode as a record, as soon as it ends.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message, as_text, with_arguments
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.reporting.errors import TeacherRefused, TeacherUnavailable

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
