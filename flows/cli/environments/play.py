"""A person plays an episode in the terminal, by the same rules as a model.

In: an environment with its session, a seed, a way to ask and to show. Out: the finished episode.
What is no valid argument is told and asked again, as a person mistypes; all else costs what it costs a model.
"""

import io
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.pool import sessions_with
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.cli.environments.choice import environment_of, in_recipe, recipe_at, server_at, settings_class
from apprentice.flows.runtime.servers import environment_server
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop

Ask = Callable[[str], str]


def play(environment: ToolEnvironment, seed: int, ask: Ask = input, show: Callable[[str], None] = print) -> Episode:
    """Raises EOFError, KeyboardInterrupt when the person leaves, Stop when the server refuses or goes away."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    try:
        episode = Episode(environment, seed)
        show(f"{episode.environment.instructions}\n\n{episode.question}\n")
        while not episode.done:
            _turn(episode, ask, show)
    except Refused as refused:
        raise Stop(f"The server refuses the question: {refused}", "Name other settings with --set.") from refused
    except SessionLost as lost:
        raise Stop(f"The server went away: {lost}.", "See that it runs, and play again.") from lost
    show(_end_of(episode))
    return episode


def _turn(episode: Episode, ask: Ask, show: Callable[[str], None]) -> None:
    if (turns := episode.environment.max_turns) > 1:
        show(f"Turn {episode.turns + 1} of {turns}.")
    function = _tool(episode.tools, ask, show)["function"]
    parameters = function["parameters"]
    arguments = {}
    for name, schema in parameters.get("properties", {}).items():
        value = _argument(name, schema, name in parameters.get("required", []), ask, show)
        if value is not None:
            arguments[name] = value
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    episode.step({"role": "assistant", "content": None, "tool_calls": [call]})
    show(f"{episode.messages[-1]['content']}\n")


def _tool(tools: list[dict[str, Any]], ask: Ask, show: Callable[[str], None]) -> dict[str, Any]:
    """The tool by its name, or the first letters of it; not asked for where there is one that takes arguments."""
    named = {tool["function"]["name"]: tool for tool in tools}
    if len(named) == 1 and tools[0]["function"]["parameters"].get("properties"):
        return tools[0]
    while True:
        said = ask(f"Tool ({', '.join(named)}): ").strip()
        meant = [name for name in named if name == said] or [name for name in named if said and name.startswith(said)]
        if len(meant) == 1:
            return named[meant[0]]
        show(f"There is no tool {said!r}." if not meant else f"This may be {' or '.join(meant)}.")


def _argument(name: str, schema: dict[str, Any], needed: bool, ask: Ask, show: Callable[[str], None]) -> Any:
    """The value of one argument; None where it is left out."""
    about = schema.get("description", "")
    choices = f" ({', '.join(map(str, schema['enum']))})" if "enum" in schema else ""
    while True:
        said = ask(f"{name}{choices}{'' if needed else ' (may be left out)'}: ")
        if not said.strip():
            if not needed:
                return None
            show(f"{name} is needed. {about}".strip())
            continue
        value = _meant(said, schema)
        problems = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
        if not problems:
            return value
        show(f"{problems[0]}. {about}".strip())


def _meant(said: str, schema: dict[str, Any]) -> Any:
    """What was typed, as the type that the tool wants: 7 is a number where one is wanted, and a text elsewhere."""
    if "string" in (schema.get("type", "string"), *schema.get("type", [])):
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said


def _end_of(episode: Episode) -> str:
    correct = f" The environment's own answer: {episode.environment.correct}" if episode.environment.correct else ""
    if episode.reward is None:
        return f"No reward: {episode.broken}.{correct}"
    return f"Reward {episode.reward:.2f} of 1.{correct}"


def any_seed() -> int:
    """One that was not chosen, and is said, so that the question can be played again."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"Seed {seed}.")
    return seed


SESSIONS = 4
"""Of a server that is started for one player: one, and some for what was lost on the way."""
PATIENCE = 20.0
"""Seconds that a person waits for a server that does not answer."""


@contextmanager
def open_environment(
    name: str, overrides: list[str] | None, url: str | None, recipe: Path | None
) -> Iterator[ToolEnvironment]:
    """The environment under the settings named, or a recipe's, or those that it is known to run with. Raises Stop."""
    settings_class(name)
    settings, server = None, EnvironmentServer()
    if recipe is not None:
        of_the_recipe, server = in_recipe(recipe_at(recipe), name)
        settings = of_the_recipe.settings
    spec, said = environment_of(name, settings, overrides)
    if said:
        print(said)
    if url and spec.mixed:
        raise Stop("A mixture has no server of its own.", "Leave --url out, or name server.parts in a --recipe.")
    if url:
        server = server_at(url, like=server)
    with ExitStack() as stack:

        def running(environment: str, there: EnvironmentServer) -> EnvironmentServer:
            if not there.url:
                there = there.at(stack.enter_context(environment_server(environment, there, SESSIONS, print)))
            return there.model_copy(update={"patience": min(PATIENCE, there.patience)})

        if mixed := sorted({part.name for part in spec.mixed.values()}):
            parts = {each: running(each, server.parts.get(each, EnvironmentServer())) for each in mixed}
            server = server.model_copy(update={"parts": parts})
        else:
            server = running(name, server)
        _, (session,) = sessions_with(server, 1, print, lambda server: nullcontext)
        environment = spec.make(session)
        stack.callback(environment._close)
        yield environment
