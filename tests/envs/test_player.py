"""A player of an environment: its tools are data, and what TRL is given has those alone."""

import inspect
from typing import Any

import pytest

from apprentice.envs.catalog import CATALOGUE, EnvironmentSpec
from apprentice.envs.echo.env import Environment as Echo
from apprentice.envs.openenv.tools import ListedTool
from apprentice.envs.player import Player, facade_of
from apprentice.flows.environment_list import settings_from_a_recipe

NAMES = ["act", "reward", "session", "scores"]
"""Names of a server's tools that an environment or its player has as well."""


def public(instance: Any) -> list[str]:
    """The methods that TRL finds."""
    return [name for name, _ in inspect.getmembers(type(instance), inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_trl_is_given_has_the_tools_alone_with_their_signatures(name: str):
    whole = EnvironmentSpec(name=name, settings=settings_from_a_recipe(name)[0]).make()
    for player in whole.parts():
        facade = facade_of(player)
        assert public(facade) == sorted([*(tool.name for tool in player.tools), "reset"])
        for tool in player.tools:
            assert inspect.signature(getattr(facade, tool.name)) == inspect.signature(tool.call)
            assert getattr(facade, tool.name).__doc__ == tool.call.__doc__
        assert facade.schemas == player.schemas


def test_a_servers_tools_may_have_names_that_an_environment_uses_itself():
    tools = [ListedTool(name=name, description="Does it.").model_dump() for name in NAMES]
    player = EnvironmentSpec(name="mcp", settings={"tools": tools, "reward_range": (-2.0, 4.0)}).make()
    assert [tool.name for tool in player.tools] == sorted(NAMES)
    assert [schema["function"]["name"] for schema in player.schemas] == sorted(NAMES)
    assert public(facade_of(player)) == sorted([*NAMES, "reset"])
    assert (player.reward, player.reward_range) == (0.0, (-0.5, 1.0))


def test_the_same_tools_are_rendered_once_for_all_players():
    number = EnvironmentSpec(name="number")
    one, other = number.make(), number.make()
    assert one.tools[0].schema == other.tools[0].schema
    assert one.tools[0].described is other.tools[0].described


def test_an_error_of_an_authors_property_is_shown_as_it_is():
    class Wrong(Echo):
        @property
        def max_turns(self) -> int:
            return self.turns  # type: ignore[attr-defined]

    player = Player(Wrong(Echo.Settings()))
    with pytest.raises(AttributeError, match="has no attribute 'turns'"):
        _ = player.max_turns
