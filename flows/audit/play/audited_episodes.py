"""Episodes that an audit plays, with all that they showed.

In: a player, a seed, a way to choose the next call. Out: an `AuditedEpisode`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.game import SAY
from apprentice.envs.player import Player
from apprentice.flows.audit.play.findings import CheckEvidence
from apprentice.tasks.episodes.episode import Call, Episode

Move = Callable[[Episode], Call | None]
"""Returns the next call of a running episode, `say` for a last text; None for a message that is neither."""


class AuditedTask(NamedTuple):
    """An environment that was audited, with the questions that it gave."""

    spec: EnvironmentSpec
    environment: Player
    seeds: Sequence[int]
    questions: Sequence[str]


class AuditedEpisode(NamedTuple):
    """An episode that was played to its end."""

    seed: int
    question: str
    calls: tuple[Call, ...]
    replies: tuple[str, ...]
    rewards: tuple[float | None, ...]
    """The reward after each call."""
    reward: float | None
    broken: str
    """Why the environment failed on a call; empty otherwise."""
    correct: str | None
    ended: bool
    """Whether the environment ended it."""

    def evidence(self, saw: str = "") -> CheckEvidence:
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        last = f"{self.replies[-1]!r}, " if self.replies else ""
        return CheckEvidence(self.seed, self.calls, saw or self.broken or f"{last}{reward}")


class AuditReply(NamedTuple):
    """What the first episodes showed."""

    questions: list[str]
    again: list[str]
    """The questions of the same seeds in reverse order, on another session if there is one: they differ if the server
    counts its resets or draws at random."""
    played: list[AuditedEpisode]
    broken: list[AuditedEpisode]
    """Those that could not be played to the end, except by a crash on a guessed move."""
    rewarded: bool = True
    """Whether any step of them had a reward, or ended its episode; True where the server took no guessed call."""


def play(player: Player, seed: int, move: Move) -> AuditedEpisode:
    """Play an episode. Raises Refused, BadReply, SessionLost."""
    episode = Episode(player, seed)
    calls: list[Call] = []
    rewards: list[float | None] = []
    while not episode.done:
        if (call := move(episode)) is None:
            episode.step({"role": "assistant", "content": "I do not know."})
            break
        calls.append(call)
        take(episode, call)
        rewards.append(episode.reward)
    replies = tuple(each["content"] for each in episode.messages if each["role"] == "tool")
    return AuditedEpisode(
        seed,
        episode.question,
        tuple(calls),
        replies,
        tuple(rewards),
        episode.reward,
        episode.broken,
        episode.player.correct,
        episode.player.done,
    )


def take(episode: Episode, *calls: Call) -> None:
    """Make one message's calls in a running episode, or say its last text."""
    if calls and calls[0][0] == SAY and says(episode.player):
        episode.step({"role": "assistant", "content": calls[0][1]["text"]})
        return
    named = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    made = [
        {"id": f"call_{episode.turns}_{place}", "type": "function", "function": each}
        for place, each in enumerate(named)
    ]
    episode.step({"role": "assistant", "content": None, "tool_calls": made})


def says(player: Player) -> bool:
    """Whether a call of `say` is a last text: not where a tool has this name."""
    return player.takes_text and SAY not in [tool.name for tool in player.tools]


def replayed(calls: Iterable[Call]) -> Move:
    """Return a move that makes these calls in turn, and then none."""
    left = deque(calls)
    return lambda _: left.popleft() if left else None


def always(call: Call | None) -> Move:
    return lambda _: call
