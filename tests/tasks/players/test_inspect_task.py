"""Law 7, played by Inspect: the same episodes, rewards and rates as our own evaluation, and an outage is never a 0."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reasoning_gym import env
from apprentice.envs.reasoning_gym.env import Settings
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost
from apprentice.flows import inspect_models as inspect_flow
from apprentice.flows.inspect_models import inspect_models
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Teacher
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import EvaluatedEpisode, Message
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.evaluate import rates
from apprentice.tasks.players.inspect_task import RATES, _as_ours, episodes_task, run_inspect
from apprentice.tasks.players.play import Endpoint as EndpointPlayer
from apprentice.tasks.players.play import play_alone, plays_of
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import EvaluateSpec, ThinkingSpec
from tests.endpoint import KEY, Endpoint, say
from tests.tasks.episodes.test_episode import Guess

Say = Callable[[list[Message]], Message]

MODEL = "openai-api/student/toy"
THINKING = ThinkingSpec(mode="native", max_tokens=96)


@pytest.fixture(autouse=True)
def _inspect_keeps_its_traces_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("STUDENT_API_KEY", KEY)


@pytest.fixture
def pool(chain_sum: EnvironmentSpec, server: EnvironmentServer) -> Iterator[EnvironmentPool]:
    with EnvironmentPool(chain_sum, server, 8) as opened:
        yield opened


def rows_of(pool: EnvironmentPool, seeds: range) -> list[dict[str, Any]]:
    questions = pool.map(lambda environment, seed: environment.ask(seed), seeds)
    return sorted(({"seed": seed, "question": text} for seed, text in questions), key=lambda row: row["seed"])


def call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


def plays(task: EnvironmentSpec, error_rate: float = 0.0) -> Say:
    return lambda messages: call(*env.call(task.settings, messages, error_rate))


def says(text: str) -> Say:
    return lambda messages: {"role": "assistant", "content": text}


def mock(say: Say) -> dict[str, Any]:
    """The arguments with which Inspect's model without a network says what `say` does."""

    def answer(messages: list[ChatMessage], *_: Any) -> ModelOutput:
        return output(say([{"role": message.role, "content": message.text} for message in messages]))

    return {"custom_outputs": answer}


def output(message: Message) -> ModelOutput:
    made = ModelOutput.from_content("mockllm/model", message["content"])
    if "tool_calls" in message:
        function = message["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        made = ModelOutput.for_tool_call(
            "mockllm/model", function["name"], arguments, tool_call_id="call_1", content=""
        )
    made.usage = ModelUsage()  # else it counts tokens, with a vocabulary that it downloads
    return made


class Says:
    """The same player for our own evaluation."""

    def __init__(self, say: Say):
        self._say = say

    def reply(self, episodes: list[Episode]) -> list[Message]:
        return [self._say(episode.messages) for episode in episodes]


def means_in(log: Path) -> dict[str, float]:
    """The rates that Inspect shows."""
    results = read_eval_log(str(log), header_only=True).results
    assert results is not None
    return {score.name: score.metrics["mean"].value for score in results.scores}


@pytest.mark.long
def test_a_perfect_player_scores_everything_and_the_log_is_kept(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    task = episodes_task(pool, chain_sum, rows_of(pool, range(12)), 64, 0.0)
    kept, records = run_inspect(task, "mockllm/model", tmp_path / "logs", model_args=mock(plays(chain_sum)))
    assert [record.seed for record in records if record.valid and record.is_right] == list(range(12))
    assert kept.parent == tmp_path / "logs"
    log = read_eval_log(str(kept))
    assert log.results is not None
    assert {score.name: set(score.metrics) for score in log.results.scores} == {
        rate: {"mean", "stderr"} for rate in RATES
    }
    assert means_in(kept) == dict.fromkeys(RATES, 1.0)
    samples = sorted(log.samples or [], key=lambda sample: sample.id)
    assert [sample.id for sample in samples] == list(range(12))
    assert all(not isinstance(sample.input, str) for sample in samples)
    assert {tuple(message.role for message in sample.input) for sample in samples} == {("system", "user")}  # type: ignore[union-attr]
    assert [message.role for message in samples[0].messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("samples", [1, 2])
def test_inspect_and_our_own_evaluation_leave_the_same_records(
    task: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path, samples: int
):
    ours: list[EvaluatedEpisode] = []
    with EnvironmentPool(task, server, 8) as pool:
        rows = rows_of(pool, range(20))
        play_alone(pool, plays_of(rows, samples), Says(plays(task, 0.4)), PROTOCOLS["parity"], ours.append)
    with EnvironmentPool(task, server, 8) as pool:
        episodes_in_inspect = episodes_task(pool, task, rows, 64, 1.0, samples)
        log, records = run_inspect(episodes_in_inspect, "mockllm/model", tmp_path, model_args=mock(plays(task, 0.4)))
    assert records == sorted(ours, key=lambda record: record.place)
    counted = rates(ours, PROTOCOLS["parity"])
    assert (counted["broken"], counted["unfinished"]) == (0, 0)
    assert counted.get("questions", counted["n"]) == 20
    assert means_in(log) == pytest.approx({name: counted[name] for name in RATES})
    assert 0.0 < counted["accuracy"] < 1.0


def test_plain_text_is_no_valid_answer(chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path):
    task = episodes_task(pool, chain_sum, rows_of(pool, range(5)), 64, None)
    log, records = run_inspect(task, "mockllm/model", tmp_path, model_args=mock(says("It is 5.")))
    assert means_in(log) == dict.fromkeys(RATES, 0.0)
    assert {tuple(record.causes) for record in records} == {("no tool call",)}


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ({"name": "answer", "arguments": '{"answer": "5'}, "malformed arguments"),
        ({"name": "answer", "arguments": '{"answer": 5}'}, "arguments off the schema"),
        ({"name": "solve", "arguments": '{"answer": "5"}'}, "unknown tool"),
    ],
)
def test_a_call_that_an_endpoint_garbled_is_invalid(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path, function: dict[str, str], cause: str
):
    task = episodes_task(pool, chain_sum, rows_of(pool, range(1)), 64, 0.0)
    endpoint = Endpoint([function])
    _, [record] = run_inspect(task, MODEL, tmp_path, base_url=endpoint.url)
    assert (record.valid, record.causes) == (False, [cause])


def test_what_inspect_repairs_counts_as_said(chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path):
    """Known: our own evaluation calls these arguments malformed."""
    task = episodes_task(pool, chain_sum, rows_of(pool, range(1)), 64, 0.0)
    endpoint = Endpoint([{"name": "answer", "arguments": "five"}])
    _, [record] = run_inspect(task, MODEL, tmp_path, base_url=endpoint.url)
    assert record.valid


class GuessingPool(EnvironmentPool):
    """Environments of several turns that need no server."""

    def __init__(self, spec: EnvironmentSpec, server: EnvironmentServer, size: int):
        super().__init__(spec, server, size)
        self.players = [Player(Guess(Settings(dataset="chain_sum"), session)) for session in self.sessions]


GUESSES = [{"seed": seed, "question": "Which number?"} for seed in range(6)]


def test_an_episode_of_several_turns_goes_on_until_the_environment_or_the_turns_end_it(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path
):
    def counting(messages: list[Message]) -> Message:
        wrong = [message["content"] for message in messages if message["role"] == "tool"]
        assert set(wrong) <= {"Wrong."}
        return call("guess", {"number": len(wrong)})

    with GuessingPool(chain_sum, server, 2) as pool:
        task = episodes_task(pool, chain_sum, GUESSES, 64, 0.0)
        _, records = run_inspect(task, "mockllm/model", tmp_path, model_args=mock(counting))
    assert [record.turns for record in records] == [1, 2, 3, 3, 3, 3]
    assert [record.reward for record in records] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.long
def test_an_environment_that_cannot_be_reached_stops_the_examination(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    rows = rows_of(pool, range(3))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    away = EnvironmentPool(chain_sum, EnvironmentServer(url=closed, patience=0.2), 2)
    with away, pytest.raises(SessionLost, match=closed):
        episodes_task(away, chain_sum, rows, 64, 0.0)


def test_an_environment_that_is_lost_in_an_episode_is_no_score_of_zero(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path
):
    def losing(messages: list[Message]) -> Message:
        return call("crash", {})

    with (
        GuessingPool(chain_sum, server, 2) as pool,
        pytest.raises(Stop, match=r"mockllm/model did not finish: SessionLost\('gone'\)"),
    ):
        run_inspect(
            episodes_task(pool, chain_sum, GUESSES, 64, 0.0), "mockllm/model", tmp_path, model_args=mock(losing)
        )
    log = read_eval_log(str(next(tmp_path.glob("*.eval"))))
    assert log.status == "error"
    assert not any(sample.scores for sample in log.samples or [])


def test_inspect_buys_no_turn_while_the_environment_is_away(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path
):
    messages_sent: list[Message] = []

    def wrong(messages: list[Message]) -> Message:
        messages_sent.append(messages[-1])
        pool.breaker.stop()
        return call("guess", {"number": -1})

    with GuessingPool(chain_sum, server, 1) as pool:
        task = episodes_task(pool, chain_sum, GUESSES[:1], 64, 0.0)
        with pytest.raises(Stop, match="did not finish"):
            run_inspect(task, "mockllm/model", tmp_path, model_args=mock(wrong))
    assert len(messages_sent) == 1


def test_a_question_that_is_not_the_one_written_down_stops_the_examination(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    task = episodes_task(pool, chain_sum, [{"seed": 3, "question": "What is 1 + 1?"}], 64, 0.0)
    with pytest.raises(Stop, match="For seed 3 the server asks another question than the recorded one"):
        run_inspect(task, "mockllm/model", tmp_path, model_args=mock(plays(chain_sum)))


def test_as_many_episodes_run_at_once_as_the_pool_has_environments(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    running, most = 0, 0

    async def slow(messages: list[ChatMessage], *_: Any) -> ModelOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1
        return output(says("I do not know.")([]))

    task = episodes_task(pool, chain_sum, rows_of(pool, range(12)), 64, 0.0)
    _, records = run_inspect(task, "mockllm/model", tmp_path, model_args={"custom_outputs": slow})
    assert (len(records), most) == (12, 8)


@pytest.mark.long
def test_a_server_that_grants_fewer_sessions_is_played_with_those(chain_sum: EnvironmentSpec, tmp_path: Path):
    said: list[str] = []
    with (
        local_server("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "2") as url,
        EnvironmentPool(chain_sum, EnvironmentServer(url=url), 8, said.append) as pool,
    ):
        task = episodes_task(pool, chain_sum, rows_of(pool, range(9)), 64, 0.0)
        _, records = run_inspect(task, "mockllm/model", tmp_path, model_args=mock(plays(chain_sum)))
    assert [record.is_right for record in records] == [True] * 9
    assert [line for line in said if "grants only 2 concurrent sessions" in line] == said != []


def test_a_model_behind_an_openai_compatible_endpoint_is_reached(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    teacher = ("--environment", "reasoning_gym", "--settings", json.dumps(chain_sum.settings), "--error-rate", "0.0")
    task = episodes_task(pool, chain_sum, rows_of(pool, range(8)), 64, 0.0)
    with local_server("apprentice.envs.serving.scripted_teacher", *teacher) as url:
        log, _ = run_inspect(task, MODEL, tmp_path, base_url=f"{url}/v1")
    assert means_in(log) == dict.fromkeys(RATES, 1.0)


@pytest.mark.parametrize(
    ("serves_student", "thinking"), [(True, None), (False, None), (True, THINKING), (False, THINKING)]
)
def test_an_endpoint_reads_of_inspect_what_it_reads_of_our_own_evaluation(
    chain_sum: EnvironmentSpec,
    pool: EnvironmentPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serves_student: bool,
    thinking: ThinkingSpec | None,
):
    """But for Inspect's spelling of a tool, which only a student's prompt is made of."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    rows = rows_of(pool, range(1))
    endpoint = Endpoint([{"name": "answer", "arguments": '{"answer": "5"}'}])
    thinks = thinking is not None
    task = episodes_task(pool, chain_sum, rows, 64, 0.5, serves_student=serves_student, thinks=thinks)
    run_inspect(task, MODEL, tmp_path, base_url=endpoint.url)
    spec = TeacherSpec(model="toy", max_tokens=64, temperature=0.5, serves_student=serves_student).teaching(thinking)
    teacher = Teacher(spec, endpoint.url, 1, Budget(None, None, tmp_path / "spent"))
    play_alone(pool, plays_of(rows, 1), EndpointPlayer(teacher), PROTOCOLS["parity"], lambda record: None)
    teacher.close()
    inspects, ours = endpoint.requests
    if not serves_student:
        (tool,) = inspects["tools"]
        assert tool["function"].pop("strict") is False
        assert tool["function"]["parameters"].pop("additionalProperties") is False
    assert inspects == ours


CALL = ToolCall(id="1", function="answer", arguments={"answer": "85"})
NO_TEXT, TEXT = ContentText(text=""), ContentText(text="47 + 38 = 85.")


@pytest.mark.parametrize(
    ("content", "calls", "thought", "text"),
    [
        ([ContentReasoning(reasoning="47 + 38 = 85."), NO_TEXT], [CALL], "47 + 38 = 85.", ""),
        ([ContentReasoning(reasoning="47 + 38 = 85."), ContentText(text="85")], None, "47 + 38 = 85.", "85"),
        ([ContentReasoning(reasoning="a"), ContentReasoning(reasoning="b")], [CALL], "a\nb", ""),
        ([ContentReasoning(reasoning="x7Qk", summary="I add.", redacted=True), NO_TEXT], [CALL], "I add.", ""),
        ([ContentReasoning(reasoning="x7Qk", redacted=True), NO_TEXT], [CALL], None, ""),
        ([TEXT], [CALL], "47 + 38 = 85.", ""),
        ("47 + 38 = 85.", [CALL], "47 + 38 = 85.", ""),
        ("It is 85.", None, None, "It is 85."),
    ],
)
def test_a_thought_that_inspect_has_read_is_the_turns_thought_where_the_student_thinks(
    content: Any, calls: Any, thought: str | None, text: str
):
    message = ChatMessageAssistant(content=content, tool_calls=calls)
    ours = _as_ours(message, thinks=True)
    assert (ours.get(THOUGHT), ours["content"]) == (thought, text)
    assert len(ours.get("tool_calls", [])) == len(calls or [])
    assert THOUGHT not in _as_ours(message, thinks=False)


def thought_turn(number: int, finish: str = "stop", **message: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    """A turn of a server of a student that thinks; without a call if it is cut off."""
    status, headers, body = say("", finish)
    function = {"name": "guess", "arguments": json.dumps({"number": number})}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}] if finish == "stop" else None
    body["choices"][0]["message"] |= {"tool_calls": calls} | message
    return status, headers, {"id": "1", "object": "chat.completion", "created": 0, "model": "toy"} | body


@pytest.mark.parametrize("thought", [{"content": "It is low."}, {"reasoning_content": "It is low."}])
def test_a_thought_is_recorded_and_goes_back_to_the_student_in_the_field_in_which_it_came(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path, thought: dict[str, str]
):
    endpoint = Endpoint(thought_turn(7, **thought), thought_turn(0, **thought))
    with GuessingPool(chain_sum, server, 1) as pool:
        task = episodes_task(pool, chain_sum, GUESSES[:1], 64, 0.0, serves_student=True, thinks=True)
        _, [record] = run_inspect(task, MODEL, tmp_path, base_url=endpoint.url)
    turns = [message for message in record.messages if message["role"] == "assistant"]
    assert [(turn[THOUGHT], turn["content"]) for turn in turns] == [("It is low.", "")] * 2
    _, second = endpoint.requests
    [sent] = [message for message in second["messages"] if message["role"] == "assistant"]
    assert {name: each for name, each in sent.items() if each and name in ("content", THOUGHT)} == thought


@pytest.mark.parametrize(("thinks", "cause"), [(True, "thought cut off"), (False, "no tool call")])
def test_a_thought_without_an_end_is_named_by_inspect_as_by_our_own_evaluation(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, tmp_path: Path, thinks: bool, cause: str
):
    endpoint = Endpoint(thought_turn(0, "length", reasoning_content="It is", content=""))
    with GuessingPool(chain_sum, server, 1) as pool:
        task = episodes_task(pool, chain_sum, GUESSES[:1], 64, 0.0, serves_student=True, thinks=thinks)
        _, [record] = run_inspect(task, MODEL, tmp_path, base_url=endpoint.url)
    assert record.causes == [cause]
    assert record.messages[2].get(THOUGHT) == ("It is" if thinks else None)


@pytest.mark.parametrize(
    ("serves_student", "teacher", "thinking", "most"),
    [
        (True, None, None, 48),
        (True, TeacherSpec(max_tokens=500), None, 48),
        (True, TeacherSpec(max_tokens=500), THINKING, 48 + 96),
        (False, TeacherSpec(max_tokens=500), THINKING, 500),
        (False, None, None, 48),
    ],
)
def test_inspect_gives_a_students_thought_its_room_beside_the_answers(
    serves_student: bool, teacher: TeacherSpec | None, thinking: ThinkingSpec | None, most: int
):
    assert inspect_flow._tokens(EvaluateSpec(max_new_tokens=48), teacher, serves_student, thinking) == most


def test_an_endpoint_that_refuses_stops_the_examination_and_its_key_is_neither_shown_nor_kept(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path
):
    task = episodes_task(pool, chain_sum, rows_of(pool, range(1)), 64, 0.0)
    with pytest.raises(Stop, match=r"openai-api/student/toy did not finish: .*401") as stopped:
        run_inspect(task, MODEL, tmp_path / "logs", base_url=Endpoint(401).url)
    assert KEY not in str(stopped.value)
    (log,) = (tmp_path / "logs").iterdir()
    with ZipFile(log) as parts:
        texts = [parts.read(name) for name in parts.namelist()]
    assert any(b"Bearer ***" in text for text in texts)
    assert not any(KEY.encode() in text for text in texts)


@pytest.mark.parametrize("model", ["no-such-provider/toy", "openai-api/keyless/toy"])
def test_a_model_that_inspect_does_not_know_or_has_no_key_for_stops_before_anything_is_asked(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path, model: str
):
    task = episodes_task(pool, chain_sum, rows_of(pool, range(1)), 64, 0.0)
    with pytest.raises(Stop, match=f"Inspect cannot reach {model}"):
        run_inspect(task, model, tmp_path)


class Wordy(Guess):
    """A tool whose schema says more than Inspect's form of it can."""

    def guess(self, number: int | None = None) -> str:
        """Guess the number.

        Args:
            number: Your guess.

        Returns:
            Whether it is right.
        """
        return "Right."


def test_a_tool_that_inspect_cannot_express_stops_the_examination(chain_sum: EnvironmentSpec, pool: EnvironmentPool):
    pool.players[:] = [Player(Wordy(Settings(dataset="chain_sum"))) for _ in pool.sessions]
    with pytest.raises(Stop, match="cannot express the parameters of the tool guess"):
        episodes_task(pool, chain_sum, GUESSES, 64, 0.0)


def test_inspect_leaves_the_process_as_it_was(
    chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook
    task = episodes_task(pool, chain_sum, rows_of(pool, range(2)), 64, 0.0)
    capfd.readouterr()
    run_inspect(task, "mockllm/model", tmp_path, model_args=mock(plays(chain_sum)))
    assert (root.handlers[:], root.level, sys.excepthook) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("hears_sigint")
def test_ctrl_c_is_not_swallowed(chain_sum: EnvironmentSpec, pool: EnvironmentPool, tmp_path: Path):
    async def interrupted(*_: Any) -> ModelOutput:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)
        raise AssertionError

    task = episodes_task(pool, chain_sum, rows_of(pool, range(1)), 64, 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_inspect(task, "mockllm/model", tmp_path, model_args={"custom_outputs": interrupted})


def test_without_inspect_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    recipe = load_recipe("toy")
    with pytest.raises(Stop, match=r"pip install 'openenv-apprentice\[inspect\]'"):
        inspect_models.fn(recipe, ["mockllm/model"], recipe.evaluate, recipe.seed_windows().evaluate)
