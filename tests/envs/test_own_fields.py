"""A server of MCP tools that answers in fields of its own, as OpenEnv's agent_world_model_env does."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.episodes.episode import Episode
from tests.envs.discovered import called, playing
from tests.envs.published import oddities
from tests.envs.published.serving import serving


@contextmanager
def begun(**settings: list[str]) -> Iterator[Episode]:
    app = oddities.served(oddities.OwnFields, oddities.OwnCall)
    with serving(app) as url, playing(EnvironmentServer(url=url, message_timeout=60)) as begin:
        yield begin(EnvironmentSpec(settings=settings), 1)


@pytest.mark.parametrize(("settings", "shown"), [({}, '{"label": "odd"}'), ({"reply": ["tool_name"]}, "judge")])
def test_the_model_sees_the_tools_answer_and_its_error(settings: dict[str, list[str]], shown: str):
    with begun(**settings) as episode:
        episode.step(called("judge", label="neither"))
        assert episode.messages[-1]["content"] == "{'error': 'no such label: neither'}"
        assert not episode.done
        episode.step(called("judge", label="odd"))
        assert shown in episode.messages[-1]["content"]
        assert episode.done
