"""A server of MCP tools that answers in fields of its own, as OpenEnv's agent_world_model_env does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.episodes.episode import Episode
from tests.envs.discovered import called, playing
from tests.envs.published import oddities
from tests.envs.published.serving import serving


@contextmanager
def begun(say: Any = None, **settings: list[str]) -> Iterator[Episode]:
    app = oddities.served(oddities.OwnFields, oddities.OwnCall)
    with serving(app) as url, playing(EnvironmentServer(url=url, message_timeout=60)) as begin:
        yield begin(EnvironmentSpec(settings=settings, say=say), 1)


@pytest.mark.parametrize(("settings", "shown"), [({}, '{"label": "odd"}'), ({"reply": ["tool_name"]}, "judge")])
def test_the_model_sees_the_tools_answer_and_its_error(settings: dict[str, list[str]], shown: str):
    with begun(**settings) as episode:
        episode.step(called("judge", label="neither"))
        assert episode.messages[-1]["content"] == "{'error': 'no such label: neither'}"
        assert not episode.done
        episode.step(called("judge", label="odd"))
        assert shown in episode.messages[-1]["content"]
        assert episode.done


def test_a_last_text_may_be_sent_to_a_tool_that_the_server_does_not_list():
    with begun(say={"tool": "grade", "argument": "answer", "unlisted": True}) as episode:
        label = "even" if int(episode.question.split()[1]) % 2 == 0 else "odd"
        episode.step({"role": "assistant", "content": label})
        assert (episode.reward, episode.done) == (1.0, True)
