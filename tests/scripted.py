"""An episode that an environment's script plays on a server."""

from pathlib import Path

import yaml

from apprentice.envs.catalog import EnvironmentSpec, policy_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.tasks.episodes.episode import Episode

RECIPES = Path(__file__).parents[1] / "deployments" / "recipes"


def a_task(name: str) -> EnvironmentSpec:
    """What a recipe asks of this environment, and a script can play; its default settings where there is none."""
    for file in sorted(RECIPES.glob("*.yaml")):
        given = yaml.safe_load(file.read_text())["environment"]
        if given["name"] == name and "laptop" in file.name:
            given.get("settings", {}).pop("halving", None)  # a script that guesses need not win
            return EnvironmentSpec(**given)
    return EnvironmentSpec(name=name)


def play(task: EnvironmentSpec, url: str, seed: int) -> Episode:
    """An episode of the scripted policy that makes no mistakes."""
    session = Session(EnvironmentServer(url=url))
    episode = Episode(task.make(session), seed)
    while not episode.done:
        tool, arguments = policy_of(task.name).call(task.settings, episode.messages, 0.0)
        episode.step({"role": "assistant", "tool_calls": [{"function": {"name": tool, "arguments": arguments}}]})
    session.close()
    return episode
