"""The wire of the published environments, as JSON beside this file: what was sent, and what came back.

Recorded from the servers of this folder, which answer as the published sources do.
Run to record them anew: `python -m tests.envs.published.transcripts`.
"""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI
from openenv.core.generic_client import GenericEnvClient

from tests.envs.published import echo as echo_server
from tests.envs.published import openspiel, textarena
from tests.envs.published.nltk_data import a_little_nltk_data
from tests.envs.published.serving import serving

HERE = Path(__file__).parent
SERVERS: dict[str, Callable[[], FastAPI]] = {
    "wordle": lambda: textarena.app_of("Wordle-v0"),
    "sudoku": lambda: textarena.app_of("Sudoku-v0-very-easy"),
    "echo": echo_server.app,
    "catch": openspiel.app,
}
SOURCE = "github.com/huggingface/OpenEnv at 385de5eb, envs/"
SOURCES = {"wordle": "textarena_env", "sudoku": "textarena_env", "echo": "echo_env", "catch": "openspiel_env"}


class Exchange(NamedTuple):
    """A message and its answer: `kind` is reset, step or state."""

    kind: str
    sent: dict[str, Any]
    received: dict[str, Any]


def say(message: str) -> tuple[str, dict[str, Any]]:
    return "step", {"message": message}


def echo(message: str) -> tuple[str, dict[str, Any]]:
    return "step", {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": message}}


SOLVING = ["[2 3 9]", "[2 6 1]", "[3 6 5]", "[5 2 3]", "[6 8 8]", "[8 2 4]"]
"""The moves that solve the puzzle of seed 3."""
SCRIPTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    # three games: lost by two mistakes in a row, lost by six guesses, won after a mistake that is forgiven
    "wordle": [
        *[("reset", {"seed": 7}), ("state", {}), say("[crane]"), say("[zzzzz]"), say("[crane]")],
        *[("reset", {"seed": 4}), ("state", {}), say("[crane]"), say("water"), say("[no]"), say("[house]")],
        *[say("[storm]"), say("[stone]"), say("[apple]")],
        *[("reset", {"seed": 4}), ("state", {}), say("I say [crane]."), say("[zzzzz]"), say("[plate]")],
    ],
    # two games: solved, with a mistake that is forgiven, and lost by two in a row
    "sudoku": [
        *[("reset", {"seed": 3}), ("state", {}), say("[1 1 1]"), *map(say, SOLVING)],
        *[("reset", {"seed": 3}), ("state", {}), say(SOLVING[0]), say("[9 9]"), say("[1 1 1]")],
    ],
    "echo": [("reset", {"seed": 3, "words": 2}), ("step", {"type": "list_tools"}), echo("bado kif"), echo("")],
    "catch": [("reset", {"seed": 3}), ("step", {"action_id": 1, "game_name": "catch", "game_params": {}})],
}


def exchanged(url: str, script: list[tuple[str, dict[str, Any]]]) -> list[Exchange]:
    """What a server answers to a script. Steps after the end of a game are left out."""
    exchanges, done = [], False
    with GenericEnvClient(base_url=url).sync() as client:
        for kind, sent in script:
            if kind == "state":
                exchanges.append(Exchange(kind, sent, client.state()))
            elif kind == "reset" or not done:
                result = client.reset(**sent) if kind == "reset" else client.step(sent)
                done = result.done
                seen = {name: value for name, value in result.observation.items() if name != "metadata"}
                exchanges.append(Exchange(kind, sent, {"observation": seen, "reward": result.reward, "done": done}))
    return exchanges


def recorded(name: str) -> list[Exchange]:
    """The transcript of an environment."""
    return [Exchange(**each) for each in json.loads((HERE / f"{name}.json").read_text())["exchanges"]]


def main() -> None:
    with a_little_nltk_data():
        for name, app in SERVERS.items():
            with serving(app()) as url:
                exchanges = exchanged(url, SCRIPTS[name])
            head = {"source": SOURCE + SOURCES[name], "recorded": datetime.date.today().isoformat()}
            whole = head | {"exchanges": [each._asdict() for each in exchanges]}
            (HERE / f"{name}.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
