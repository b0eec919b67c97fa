"""Lets a person play an episode in the terminal, by the same rules as a model.

In: an environment with its session, a seed, input and output functions. Out: the finished episode.
Prompts again after an invalid argument, because people mistype; any other mistake has the same cost as for a model.
"""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

from apprentice.envs.player import Player
from apprentice.flows.audit.play.audited_episodes import take
from apprentice.flows.serving.chat import server_failures
from apprentice.tasks.episodes.episode import LAST_TEXT, Episode

Ask = Callable[[str], str]


def play(player: Player, seed: int, ask: Ask = input, show: Callable[[str], None] = print) -> None:
    """Play one episode. Raises EOFError or KeyboardInterrupt if the player leaves, Stop if the server fails."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with server_failures():
        episode = Episode(player, seed)
        show(f"{episode.player.instructions}\n\n{episode.question}\n")
        while not episode.done:
            _turn(episode, ask, show)
    show(_end_of(episode))


def _turn(episode: Episode, ask: Ask, show: Callable[[str], None]) -> None:
    if (turns := episode.player.max_turns) > 1:
        show(f"Turn {episode.turns + 1} of {turns}.")
    texts = [LAST_TEXT] if episode.player.takes_text else []
    function = _tool([*episode.tools, *texts], ask, show)["function"]
    parameters = function["parameters"]
    arguments = {}
    for name, schema in parameters.get("properties", {}).items():
        value = _argument(name, schema, name in parameters.get("required", []), ask, show)
        if value is not None:
            arguments[name] = value
    if function is LAST_TEXT["function"]:  # an environment may have a tool of that name
        episode.step({"role": "assistant", "content": arguments["text"]})
        return
    take(episode, (function["name"], arguments))
    show(f"{episode.messages[-1]['content']}\n")


def _tool(tools: list[dict[str, Any]], ask: Ask, show: Callable[[str], None]) -> dict[str, Any]:
    """Ask for a tool by its name or a prefix of it; do not ask if there is only one and it takes arguments."""
    named = {tool["function"]["name"]: tool for tool in tools}
    if len(named) == 1 and tools[0]["function"]["parameters"].get("properties"):
        return tools[0]
    while True:
        typed = ask(f"Tool ({', '.join(named)}): ").strip()
        found = [name for name in named if name == typed] or [
            name for name in named if typed and name.startswith(typed)
        ]
        if len(found) == 1:
            return named[found[0]]
        show(f"There is no tool {typed!r}." if not found else f"This may be {' or '.join(found)}.")


def _argument(name: str, schema: dict[str, Any], needed: bool, ask: Ask, show: Callable[[str], None]) -> Any:
    """Ask for one argument; return None if it is omitted."""
    about = schema.get("description", "")
    choices = f" ({', '.join(map(str, schema['enum']))})" if "enum" in schema else ""
    while True:
        typed = ask(f"{name}{choices}{'' if needed else ' (optional)'}: ")
        if not typed.strip():
            if not needed:
                return None
            show(f"{name} is required. {about}".strip())
            continue
        value = _parsed(typed, schema)
        problems = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
        if not problems:
            return value
        show(f"{problems[0]}. {about}".strip())


def _parsed(typed: str, schema: dict[str, Any]) -> Any:
    """Convert the input to the type in the schema: 7 becomes a number for a number, and stays text for a string."""
    if "string" in (schema.get("type", "string"), *schema.get("type", [])):
        return typed
    try:
        return json.loads(typed)
    except ValueError:
        return typed


def _end_of(episode: Episode) -> str:
    correct = f" The environment's own answer: {episode.player.correct}" if episode.player.correct else ""
    if episode.reward is None:
        return f"No reward: {episode.broken}.{correct}"
    return f"Reward {episode.reward:.2f} of 1.{correct}"
