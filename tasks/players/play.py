"""Who is examined: a local model that answers a batch of episodes, or an endpoint that answers each by itself.

In: an environment pool, questions, a protocol. Out: each played episode as a record, as soon as it ends.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from apprentice.envs.base import ToolEnvironment, traits_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.episodes.record import EvaluatedEpisode, with_texts
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.players.teacher import Spent, Teacher
from apprentice.tasks.reporting.errors import Stop

Keep = Callable[[EvaluatedEpisode], None]


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
    """Plays all, as many at a time as the server grants sessions, every turn of those generated together.

    An environment whose episode ended takes the next one at once, so that batches stay full where episodes end at
    different turns; questions of like length meet in a batch, so that little is padded. What is played does not depend
    on the batch: fewer sessions make smaller batches of the same episodes. Raises SessionLost, Stop.
    """
    ahead = sorted(plays, key=lambda play: len(play.question))  # the longest is played first: it needs most memory
    running: dict[int, tuple[Play, Episode]] = {}
    while ahead or running:
        idle = [place for place in range(len(pool.environments)) if place not in running]
        starting = [(place, ahead.pop()) for place in pool.playable(idle, len(ahead))]
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
        pool.together(lambda n: episodes[n].step(replies[n]), len(episodes))  # noqa: B023
        for slot, (play, episode) in list(running.items()):
            if episode.done:
                keep(as_record(episode, play))
                del running[slot]


def play_alone(pool: EnvironmentPool, plays: Sequence[Play], speaker: Speaker, protocol: Parity, keep: Keep) -> None:
    """Plays all, each episode for itself, as many at once as the pool has sessions. Raises SessionLost, Stop."""

    def play_one(environment: ToolEnvironment, play: Play) -> EvaluatedEpisode:
        episode = protocol.begin(environment, play.seed)
        check_question(play, episode)
        while not episode.done:
            episode.environment._wait_for_server()  # a turn that cannot be played is not bought
            episode.step(speaker.reply([episode])[0])
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


def as_record(episode: Episode, play: Play) -> EvaluatedEpisode:
    """What an ended episode leaves."""
    assert episode.reward is not None or episode.broken
    environment = episode.environment
    return EvaluatedEpisode(
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


class Endpoint:
    """An OpenAI-compatible endpoint; what it says counts as it is, an invalid call as well."""

    def __init__(self, teacher: Teacher, spent: Spent):
        self._teacher = teacher
        self._spent = spent

    def reply(self, episodes: list[Episode]) -> list[Message]:
        """One message an episode. Raises TeacherFailed, TeacherUnavailable, Stop."""
        return [self._teacher.say(each.messages, each.tools, self._spent, "auto", each.seed) for each in episodes]
