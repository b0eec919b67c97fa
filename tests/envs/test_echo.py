"""Echo: a text is given, and the share of it that comes back is the reward."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.env import call
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, Session
from apprentice.tasks.episodes.episode import Episode

TASK = EnvironmentSpec(name="echo", settings={"words": 2})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server("apprentice.envs.serving.serve", "echo", "--max-sessions", "32") as url:
        yield url


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    one = Session(EnvironmentServer(url=url))
    yield one
    one.close()


def said(message: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "echo", "arguments": {"message": message}}}]}


def played(session: Session, seed: int, message: object) -> Episode:
    episode = Episode(TASK.make(session), seed)
    episode.step(said(episode.question if message is ... else message))
    return episode


def test_the_whole_text_is_solved_and_a_part_of_it_earns_its_share(session: Session):
    text = played(session, 3, ...).question
    assert played(session, 3, text).reward == 1.0
    assert played(session, 3, text[:4]).reward == pytest.approx(4 / len(text))
    assert played(session, 3, text + text).reward == pytest.approx(0.5)
    assert played(session, 3, text.upper()).reward == 0.0


def test_the_last_reply_is_the_same_whatever_was_said(session: Session):
    assert {played(session, 3, message).messages[-1]["content"] for message in (..., "no", "")} == {"OK."}


@pytest.mark.parametrize("message", [7, None, ["a"], {"a": 1}, "", "🙂", "\ud83d", "한국어", "x" * 15_000])
def test_whatever_a_model_says_ends_the_episode_and_not_the_session(session: Session, message: object):
    episode = played(session, 3, message)
    assert episode.done
    assert episode.reward is not None
    assert episode.reward < 1.0
    assert played(session, 4, ...).reward == 1.0


def test_a_call_after_the_end_is_refused_in_words(session: Session):
    episode = played(session, 3, ...)
    episode.step(said("again"))
    assert "over" in episode.messages[-1]["content"]
    assert episode.reward == 1.0


def test_a_seed_is_one_text_in_every_session_at_once(url: str):
    def ask(_: int) -> list[str]:
        session = Session(EnvironmentServer(url=url))
        environment = TASK.make(session)
        texts = [environment.ask(seed) for seed in (1, 2, 1)]
        session.close()
        return texts

    with ThreadPoolExecutor(16) as executor:
        questions = list(executor.map(ask, range(16)))
    assert all(texts == questions[0] for texts in questions)
    assert questions[0][0] == questions[0][2] != questions[0][1]


@pytest.mark.parametrize(
    "wrong", [{}, {"seed": 1, "words": 0}, {"seed": 1, "words": "two"}, {"seed": 1, "words": 10**9}]
)
def test_a_reset_that_names_no_text_is_refused_and_the_session_plays_on(session: Session, wrong: dict[str, object]):
    with pytest.raises(Refused, match=r"a reset names its text|whole number"):
        session.reset(**wrong)
    assert played(session, 3, ...).reward == 1.0


@pytest.mark.parametrize("error_rate", [0.0, 0.2])
def test_the_scripted_policy_is_wrong_on_the_share_that_it_is_told(session: Session, error_rate: float):
    right = 0
    for seed in range(200):
        episode = Episode(TASK.make(session), seed)
        _, arguments = call({}, episode.messages, error_rate)
        episode.step(said(arguments["message"]))
        right += episode.reward == 1.0
    assert right == 200 if error_rate == 0.0 else 140 <= right <= 180
