"""Environment servers that misbehave on purpose: none of it becomes a reward, and none of it is shown to a model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire import session as sessions
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session, SessionLost
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.collect import collect_shard
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.answer_limits import MOST_BYTES
from apprentice.tasks.episodes.episode import Episode, problems
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message, Record
from apprentice.tasks.evaluate import evaluation_journal
from apprentice.tasks.players.play import Play, play_alone, play_batched
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.question_texts import ask
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, EvaluateSpec, Window
from tests.endpoint import KEY, Endpoint, call
from tests.hostile.endings import assert_clear
from tests.hostile.odd_wire import odd_wire
from tests.tasks.evaluations import published

ECHO = EnvironmentSpec(name="echo")

STEPS = {
    "a page of HTML": "html",
    "a list": "a list",
    "null": "null",
    "bytes that are no text": "binary",
    "200,000 brackets": "brackets",
    "a message without data": "no data",
    "a message whose data is null": "null data",
    "the answer to another message": "another type",
    "an error without data": "an error without data",
    "an error marked TIMEOUT": "timeout",
    "an exception": "broken",
    "a list in place of the observation": "a list for observation",
    "no observation": "no observation",
    "no score": "no reward",
    "a word for a score": "a word for reward",
    "a list for a score": "a list for reward",
    "a score of 1e308": "1e308",
    "a score of 7": "7.0",
    "a score of -5": "-5.0",
    "a score that is not a number": "NaN",
    "an infinite score": "infinity",
    "a score of 400 digits": "a number of 400 digits",
    "a word for whether it is over": "a word for done",
}
QUESTIONS = {
    "a missing question": "no text",
    "a question that is null": "null text",
    "a question that is a number": "a number for text",
    "a question that is a list": "a list for text",
    "a question with half a surrogate": "half a surrogate",
    "a question of 300,000 characters": "a huge text",
    "200,000 brackets": "brackets",
    "a page of HTML": "html",
    "nothing": "no data",
}
PASSING = ("an error marked TIMEOUT", "an exception", "no score", "a page of HTML", "a score of 7")


@pytest.fixture(autouse=True)
def with_short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ATTEMPTS", 3)


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """A running stage over the server at a URL."""

    def over(url: str, teacher: str | None = None) -> StageContext:
        work = RunContext(
            LocalStore(tmp_path / "artifacts", project="toy"), StandingServers({"echo": at(url)}, teacher)
        )
        for name in ("out", "scratch"):
            (tmp_path / name).mkdir(exist_ok=True)
        return StageContext(work, "0" * 20, tmp_path / "out", tmp_path / "scratch")

    return over


def at(url: str) -> EnvironmentServer:
    return EnvironmentServer(url=url, sessions=2, patience=2.0, message_timeout=10.0)


def opened(url: str, seed: int = 1) -> Iterator[Episode]:
    environment = ECHO.make(Session(at(url)))
    yield Episode(environment, seed)
    environment.close()


def says(episode: Episode, text: str | None = None) -> Message:
    """The right answer, or another one."""
    function = {"name": "echo", "arguments": {"message": episode.question if text is None else text}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def replies(episode: Episode) -> list[str]:
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS.keys())
def test_a_step_that_is_answered_with(kind: str):
    with odd_wire(kind, "step") as url:
        for episode in opened(url):
            try:
                episode.step(says(episode))
            except SessionLost:
                assert kind == "timeout", "what comes and goes is an outage, what is always so is not"
            else:
                assert episode.broken
                assert replies(episode) == ["{'error': 'the environment broke'}"], "the model sees no exception"
            assert (episode.reward, episode.player.done) == (None, True)
            assert episode.player.failure


@pytest.mark.parametrize("what", PASSING)
def test_a_step_that_is_answered_once_with(what: str):
    with odd_wire(STEPS[what], "step", times=1) as url:
        for episode in opened(url):
            episode.step(says(episode))
            assert (episode.reward, episode.broken, replies(episode)) == (1.0, "", ["OK."])


@pytest.mark.parametrize(
    ("kind", "reward"), [("rounded", 1.0), ("a little below nothing", 0.0), ("true for reward", 1.0)]
)
def test_a_score_that_is_right_but_for_rounding_is_taken(kind: str, reward: float):
    with odd_wire(kind, "step") as url:
        for episode in opened(url):
            episode.step(says(episode))
            assert episode.reward == reward


@pytest.mark.parametrize("kind", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_reset_that_is_answered_with(kind: str, context: Any):
    with odd_wire(kind, "reset") as url, pytest.raises(Stop, match="gave no question") as stop:
        ask(context(url), ECHO, [1, 2, 3])
    assert_clear(stop.value)


@pytest.mark.parametrize("kind", ["html", "a list", "timeout"])
def test_a_session_whose_state_is_answered_with(kind: str, context: Any):
    with odd_wire(kind, "state") as url, pytest.raises(Stop, match="gave no question") as stop:
        ask(context(url), ECHO, [1])
    assert_clear(stop.value)


def test_a_question_that_is_spoilt_once_is_asked_again(context: Any):
    with odd_wire("null text", "reset", times=1) as url:
        texts = ask(context(url), ECHO, [1, 2, 3])
    assert sorted(texts) == [1, 2, 3]


class Saying:
    """A player that is right."""

    def reply(self, episodes: list[Episode]) -> list[Message]:
        return [says(episode) for episode in episodes]


def plays(url: str, number: int) -> list[Play]:
    environment = ECHO.make(Session(at(url)))
    found = [Play(seed, seed, environment.ask(seed), 0) for seed in range(number)]
    environment.close()
    return found


@pytest.mark.parametrize("play", [play_batched, play_alone])
def test_an_examination_records_what_broke_and_gives_it_no_reward(play: Any):
    with odd_wire("no reward", "step", times=2) as url, EnvironmentPool(ECHO, at(url), 1) as pool:
        records: list[EvaluatedEpisode] = []
        play(pool, plays(url, 3), Saying(), PROTOCOLS["parity"], records.append)
    assert sorted((record.reward is None, bool(record.broken)) for record in records) == [
        (False, False),
        (False, False),
        (True, True),
    ]
    assert sum(record.is_right for record in records) == 2


def test_an_examination_in_which_everything_breaks_stops_and_says_why(context: Any):
    with odd_wire("7.0", "step") as url:
        evaluation_context = context(url)
        played = plays(url, 4)
        rows = "".join(json.dumps({"purpose": "evaluate", **row._asdict(), "used": True}) + "\n" for row in played)
        counts = {"collect": 0, "grpo": 0, "evaluate": 4, "dropped_from_grpo": 0}
        questions = published(evaluation_context.run.store, Questions, "0" * 20, {"questions.jsonl": rows}, counts)
        with (
            pytest.raises(Stop, match=r"failed on 2 of 4 episodes.*within 0 to 1") as stop,
            evaluation_journal(evaluation_context, EvaluateSpec(), questions, "toy") as (_, ahead, keep),
            EnvironmentPool(ECHO, at(url), 1) as pool,
        ):
            play_batched(pool, ahead, Saying(), PROTOCOLS["parity"], keep)
    assert_clear(stop.value)


def collected(context: Any, kind: str, times: int, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = Endpoint(*[[call(name="echo", arguments='{"message": "a"}')]] * (3 * size))
    with odd_wire(kind, "step", times) as url:
        stage = context(url, endpoint.url)
        collect_shard.body(
            stage, CollectSpec(max_failed=0.5), TeacherSpec(model="toy"), ECHO, Window(start=0, size=size)
        )
    lines = (stage.out / "rollouts.jsonl").read_text().splitlines()
    return [Record.model_validate_json(line) for line in lines]


def test_a_collection_records_what_broke_as_the_question_s_own_failure(context: Any, monkeypatch: pytest.MonkeyPatch):
    records = collected(context, "a word for reward", 4, 4, monkeypatch)
    failed = [record for record in records if record.failed_at]
    assert {record.failed_at for record in failed} == {"question"}
    assert 1 <= len(failed) <= 2, "two sessions share the four bad replies"
    assert all(record.reward is None and record.cause for record in failed)
    assert all(record.reward is not None for record in records if not record.failed_at)


def test_a_collection_in_which_everything_breaks_stops_and_says_why(context: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Stop, match=r"failed on \d of 4 episodes.*not a finite number") as stop:
        collected(context, "NaN", -1, 4, monkeypatch)
    assert_clear(stop.value)


@pytest.mark.parametrize("kind", ["broken", "1e308", "timeout"])
def test_a_rollout_of_grpo_scores_none(kind: str):
    with odd_wire(kind, "step") as url:
        rows = [each._asdict() for each in plays(url, 2)]
        with EnvironmentPool(ECHO, at(url), 2) as pool, LiveRollouts(pool) as rollouts:
            rollouts.begin(rows)
            rollouts.wait()
            rollouts.step({n: says(rollouts._episode_tasks[n].result()) for n in range(2)})  # type: ignore[arg-type]
            rollouts.wait()
            assert [environment.reward for environment in rollouts.players] == [None, None]
            assert rollouts.broken() == (0 if kind == "timeout" else 2)
            assert [rollouts.replies(n) for n in range(2)] == [None, None]


DEEP = 100_000
TOO_MUCH = {
    "arguments of 20 MB": '{"message": "' + "x" * 20_000_000 + '"}',
    "brackets in arguments": '{"message": ' + "[" * DEEP + "]" * DEEP + "}",
    "brackets without an end": '{"message": ' + "[" * DEEP,
    "structures within each other": '{"a":' * DEEP + "1" + "}" * DEEP,
}


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("arguments", [*TOO_MUCH.values(), {"message": nested(5000)}], ids=[*TOO_MUCH, "read already"])
def test_an_answer_beyond_the_limits_is_a_failed_answer(arguments: Any):
    function = {"name": "echo", "arguments": arguments}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    with odd_wire("html", "step") as url:
        for episode in opened(url):
            assert len(problems(message, episode.tools)) == 1, "a teacher is asked again"
            episode.step(message)
            assert (episode.done, episode.valid, episode.reward, episode.broken) == (True, False, 0.0, "")
            assert len(str(episode.messages)) < MOST_BYTES, "what is journaled is its beginning"


def test_text_with_many_brackets_in_a_string_is_an_answer():
    function = {"name": "echo", "arguments": '{"message": "' + "[" * 1000 + '\\"]"}'}
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    with odd_wire("rounded", "step") as url:
        for episode in opened(url):
            episode.step(message)
            assert (episode.valid, episode.reward) == (True, 1.0)
