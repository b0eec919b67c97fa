"""Plays a few episodes on a server, to see whether it speaks an environment's wire.

In: an environment, open sessions, seeds. Out: what was seen: questions, rewards, seconds of each round trip.
The scripted teacher's moves are played, where it knows the settings; else each tool's arguments are any of their types.
"""

import json
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec, next_call
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import BROKE, Session
from apprentice.tasks.episodes.episode import Episode

PLAYED = 2
"""Episodes that are played to their end; of the other seeds only the question is asked."""
ANY = {"string": "0", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}


class Timed(Session):
    """A session that keeps how long its round trips took."""

    def __init__(self, server: EnvironmentServer):
        super().__init__(server)
        self.resets: list[float] = []
        self.steps: list[float] = []

    def reset(self, **question: Any) -> Reply:
        begun = perf_counter()
        reply = super().reset(**question)
        self.resets.append(perf_counter() - begun)
        return reply

    def step(self, action: dict[str, Any]) -> Reply:
        begun = perf_counter()
        reply = super().step(action)
        self.steps.append(perf_counter() - begun)
        return reply


class Seen(NamedTuple):
    """What a server did."""

    questions: list[str]
    again: list[str]
    """The same seeds in the opposite order, on another session where there is one: a server that counts its resets,
    or draws, asks something else."""
    rewards: list[float]
    broken: list[str]
    """Why episodes could not be played to their end; not those in which it broke on a move that may be none."""
    resets: list[float]
    steps: list[float]


def play_a_few(spec: EnvironmentSpec, sessions: Sequence[Timed], seeds: Sequence[int]) -> Seen:
    """Raises what the environment's class raises over a wire that is not its own; Refused, SessionLost."""
    one, other = spec.make(sessions[0]), spec.make(sessions[-1])
    played = [_play(spec, one, seed) for seed in seeds[:PLAYED]]
    questions = [episode.question for episode in played]
    questions += [Episode(one, seed).question for seed in seeds[PLAYED:]]
    again = [Episode(other, seed).question for seed in reversed(seeds)][::-1]
    return Seen(
        questions,
        again,
        [episode.reward for episode in played if episode.reward is not None],
        [episode.broken for episode in played if episode.broken],
        [took for session in dict.fromkeys((sessions[0], sessions[-1])) for took in session.resets],
        sessions[0].steps,
    )


class Played(NamedTuple):
    """What came of one episode."""

    question: str
    reward: float | None
    broken: str


def _play(spec: EnvironmentSpec, environment: ToolEnvironment, seed: int) -> Played:
    episode, guessed = Episode(environment, seed), False
    while not episode.done:
        try:
            name, arguments = next_call(spec.name, spec.settings, episode.messages, 0.0, seed)
        except (ModuleNotFoundError, ValueError):  # there is no script, or it does not know this question
            name, arguments = _any_move(episode)
            guessed = True
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{episode.turns}", "type": "function", "function": function}
        episode.step({"role": "assistant", "content": None, "tool_calls": [call]})
    may_break = guessed and episode.broken.startswith(BROKE)
    return Played(episode.question, episode.reward, "" if may_break else episode.broken)


def _any_move(episode: Episode) -> tuple[str, dict[str, Any]]:
    function = episode.tools[0]["function"]
    return function["name"], {
        name: schema["enum"][0] if "enum" in schema else ANY.get(schema.get("type", "string"), "0")
        for name, schema in function["parameters"].get("properties", {}).items()
    }
