"""An environment of the `verifiers` package is played: its rows, its tools, its rubric's reward.

`make test-verifiers` installs the package beside all else and runs these.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop
from tests.envs.discovered import called, playing

pytest.importorskip("verifiers", reason="needs openenv-apprentice[verifiers]: make test-verifiers")

LETTERS = EnvironmentSpec(name="verifiers", settings={"package": "vf-letters"})


@pytest.fixture(scope="module")
def server() -> Iterator[EnvironmentServer]:
    """Ours, as a process of its own; it finds the package in tests/envs/packages."""
    packages = Path(__file__).parent / "packages"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
        with local_server("apprentice.envs.serving.serve", "verifiers") as url:
            yield EnvironmentServer(url=url, message_timeout=120)


@pytest.fixture
def begin(server: EnvironmentServer) -> Iterator[Callable[..., Episode]]:
    with playing(server) as start:
        yield lambda seed, kind, **settings: start(
            LETTERS.with_settings(LETTERS.settings | {"arguments": {"kind": kind}} | settings), seed
        )


@pytest.mark.parametrize(("text", "reward"), [("4", 1.0), ("5", 0.0)])
def test_a_single_turn_is_answered_and_the_rubric_rewards_it(begin: Callable[..., Episode], text: str, reward: float):
    episode = begin(0, "single")
    assert episode.question == "How many letters has 'pear'?"
    assert episode.messages[0]["content"].startswith("Answer with a number.\n\nGive your whole answer by calling")
    episode.step(called("answer", text=text))
    assert (episode.reward, episode.done, episode.messages[-1]["content"]) == (reward, True, "Done.")


def test_its_tools_are_called_by_its_own_loop(begin: Callable[..., Episode]):
    episode = begin(2, "tools")
    names = [tool["function"]["name"] for tool in episode.player.schemas]
    assert names == ["answer", "letters"]
    assert episode.player.schemas[1]["function"]["parameters"]["required"] == ["word"]
    episode.step(called("letters", word="not a word"))
    assert (episode.messages[-1]["content"], episode.done) == ("this is no word", False)
    episode.step(called("letters", word="apple"))
    assert (episode.messages[-1]["content"], episode.done) == ("5", False)
    episode.step(called("answer", text="5"))
    assert (episode.reward, episode.done) == (1.0, True)


def test_its_own_limit_of_turns_ends_the_episode(begin: Callable[..., Episode]):
    episode = begin(2, "tools")
    for _ in range(3):
        assert not episode.done
        episode.step(called("letters", word="apple"))
    assert episode.done


def test_where_it_answers_a_turn_the_model_reads_what_it_says(begin: Callable[..., Episode]):
    episode = begin(1, "twice")
    episode.step(called("answer", text="3"))
    assert (episode.messages[-1]["content"], episode.done) == ("Are you sure?", False)
    episode.step(called("answer", text="4"))
    assert (episode.reward, episode.done) == (1.0, True)


def test_what_the_rubric_could_not_score_is_lost_and_never_zero(begin: Callable[..., Episode]):
    episode = begin(0, "single")
    episode.step(called("answer", text="crash"))
    assert episode.reward is None
    assert "the rubric could not score" in episode.broken
    assert "the judge does not answer" in episode.broken


def test_an_empty_answer_is_the_models_mistake(begin: Callable[..., Episode]):
    episode = begin(0, "single")
    episode.step(called("answer", text=" "))
    assert (episode.reward, episode.done) == (0.0, False)
    assert "answer needs a text" in episode.messages[-1]["content"]


def test_a_seed_is_a_row_and_one_beyond_them_is_refused(begin: Callable[..., Episode]):
    assert begin(7, "single").question == "How many letters has 'date'?"
    assert begin(7, "single", split="eval").question == "How many letters has 'pear'?"
    with pytest.raises(Refused, match=r"vf-letters has 8 rows and none of the index 8: set windows\.collect\.start"):
        begin(8, "single")


def test_packages_version_and_source_are_part_of_the_key(server: EnvironmentServer):
    spec = completed(LETTERS, server)
    assert spec.settings["served_by"].startswith("vf-letters (")
    assert ", verifiers 0." in spec.settings["served_by"]
    assert spec.in_key() != LETTERS.in_key()


def test_a_package_that_is_not_there_is_named(server: EnvironmentServer):
    with pytest.raises(Stop, match="no-such-env"):
        completed(LETTERS.with_settings({"package": "no-such-env"}), server)


def test_the_check_of_a_run_finds_nothing_wrong(server: EnvironmentServer):
    found = audit(Subject(server, completed(LETTERS, server), Needs(0, 0, 4)), quick=True)
    assert found.wrong is None
