"""Plays a few episodes on a server, to see whether it speaks an environment's wire.

In: an environment, a server that answers. Out: what was seen: questions, rewards, seconds of each round trip.
The scripted teacher's moves are played, where it knows the settings; else each tool's arguments are any of their types.
"""

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.scripted_teacher import policy_of
from apprentice.envs.server import EnvironmentServer
from apprentice.envs.session import Reply, Session
from apprentice.envs.waiting import wait_for
from apprentice.tasks.episode import Message, prompt

SEEDS = range(5)
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
    """The same seeds on another session, the second of them after another question."""
    rewards: list[float | None]
    resets: list[float]
    steps: list[float]


def play_a_few(spec: EnvironmentSpec, server: EnvironmentServer) -> Seen:
    """Raises what the environment's class raises over a wire that is not its own; Refused, SessionLost."""
    sessions = [Timed(server), Timed(server)]
    try:
        for session in sessions:
            wait_for(session.open(patient=True))
        one, other = (spec.make(session) for session in sessions)
        move = _mover(spec, one)
        episodes = [_play(one, seed, move) for seed in SEEDS]
        again = [other.reset(seed=seed) for seed in SEEDS]
    finally:
        for session in sessions:
            session.close()
    return Seen(
        [question for question, _ in episodes],
        again,
        [reward for _, reward in episodes],
        [took for session in sessions for took in session.resets],
        sessions[0].steps,
    )


def _play(
    environment: ToolEnvironment, seed: int, move: Callable[[list[Message]], tuple[str, dict[str, Any]]]
) -> tuple[str, float | None]:
    """One episode: its question and its reward."""
    question = environment.reset(seed=seed)
    messages = prompt(environment, question)
    for turn in range(environment.max_turns):
        name, arguments = move(messages)
        try:
            said = str(getattr(environment, name)(**arguments))
        except ValueError as refused:  # a tool's word to the player: the move was none
            said = str({"error": str(refused)})
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "name": name, "content": said},
        ]
        if environment.done:
            break
    return question, environment.reward


def _mover(
    spec: EnvironmentSpec, environment: ToolEnvironment
) -> Callable[[list[Message]], tuple[str, dict[str, Any]]]:
    function = tool_schemas(environment)[0]["function"]
    given = {
        name: schema["enum"][0] if "enum" in schema else ANY.get(schema.get("type", "string"), "0")
        for name, schema in function["parameters"].get("properties", {}).items()
    }

    def move(messages: list[Message]) -> tuple[str, dict[str, Any]]:
        try:
            return policy_of(spec.name).call(spec.settings, messages, 0.0)
        except (ModuleNotFoundError, ValueError):  # there is no script, or an oracle that knows questions by their seed
            return function["name"], given

    return move
