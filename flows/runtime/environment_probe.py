"""Plays a few episodes on a server, to check that it speaks an environment's protocol.

In: an environment, open sessions, seeds. Out: questions, rewards, seconds of each round trip.
Plays the scripted teacher's moves if it supports the settings, otherwise arbitrary arguments of the right types.
"""

import json
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec, next_call
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import CRASHED, Session
from apprentice.tasks.episodes.episode import Episode

PLAYED = 2
"""Episodes that are played to the end; for the other seeds only the question is requested."""
ANY = {"string": "0", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}


class Timed(Session):
    """A session that records the duration of its round trips."""

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
    """What the episodes showed."""

    questions: list[str]
    again: list[str]
    """The questions of the same seeds in reverse order, on another session if there is one: they differ if the server
    counts its resets or draws at random."""
    rewards: list[float]
    broken: list[str]
    """Why episodes could not be played to the end, except crashes on a guessed move."""
    resets: list[float]
    steps: list[float]


def play_a_few(spec: EnvironmentSpec, sessions: Sequence[Timed], seeds: Sequence[int]) -> Seen:
    """Play a few episodes. Raises Refused, SessionLost, and anything that another environment's replies provoke."""
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
    """The result of one episode."""

    question: str
    reward: float | None
    broken: str


def _play(spec: EnvironmentSpec, environment: ToolEnvironment, seed: int) -> Played:
    episode, guessed = Episode(environment, seed), False
    while not episode.done:
        try:
            name, arguments = next_call(spec.name, spec.settings, episode.messages, 0.0, seed)
        except ValueError:  # no script, or it does not know this question
            name, arguments = _any_move(episode)
            guessed = True
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{episode.turns}", "type": "function", "function": function}
        episode.step({"role": "assistant", "content": None, "tool_calls": [call]})
    may_crash = guessed and episode.broken.startswith(CRASHED)
    return Played(episode.question, episode.reward, "" if may_crash else episode.broken)


def _any_move(episode: Episode) -> tuple[str, dict[str, Any]]:
    function = episode.tools[0]["function"]
    return function["name"], {
        name: schema["enum"][0] if "enum" in schema else ANY.get(str(schema.get("type", "string")), "0")
        for name, schema in function["parameters"].get("properties", {}).items()
    }
