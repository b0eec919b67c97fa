"""Collection against a real OpenAI-compatible server and a real environment server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.process import local_server
from apprentice.envs.server import EnvironmentServer
from apprentice.envs.session import Session
from apprentice.tasks.budget import Budget
from apprentice.tasks.collect import collect_shard, play_one
from apprentice.tasks.errors import Stop
from apprentice.tasks.record import Record
from apprentice.tasks.specs import CollectSpec, TeacherSpec, Window
from apprentice.tasks.stage import Bench, StandingServers
from apprentice.tasks.teacher import Teacher

SCRIPTED = TeacherSpec(scripted_error_rate=0.1)
KEY = "sk-secret-that-no-one-may-read"


class Endpoint(ThreadingHTTPServer):
    """An endpoint that says what it is told, turn after turn; the last thing for ever."""

    daemon_threads = True

    def __init__(self, *turns: Any):
        self.turns = list(turns)
        self.requests: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        endpoint = self.server
        assert isinstance(endpoint, Endpoint)
        endpoint.requests.append(json.loads(asked))
        turns = endpoint.turns
        turn = turns.pop(0) if len(turns) > 1 else turns[0]
        status = turn if isinstance(turn, int) else 200
        calls = turn if isinstance(turn, list) else []
        functions = [{"id": str(place), "type": "function", "function": call} for place, call in enumerate(calls)]
        message = {"role": "assistant", "content": None, "tool_calls": functions or None}
        body: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 0, "model": "toy"}
        body["choices"] = [] if turn is None else [{"index": 0, "finish_reason": "stop", "message": message}]
        body["usage"] = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        if status != 200:
            body = {"error": {"message": f"refused, your key is {self.headers['Authorization']}"}}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def call(name: str = "answer", arguments: str = '{"answer": "1"}') -> dict[str, str]:
    return {"name": name, "arguments": arguments}


@pytest.fixture
def play(
    chain_sum: EnvironmentSpec, server: EnvironmentServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Plays one episode against an endpoint that says `turns`; gives the record and the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = chain_sum.make(Session(server))

    def once(*turns: Any, **settings: Any) -> tuple[Record, Endpoint]:
        endpoint = Endpoint(*turns)
        spec = TeacherSpec.model_validate({"model": "toy"} | settings)
        teacher = Teacher(spec, endpoint.url, asks=3, budget=Budget(spec.prices, spec.budget_usd, tmp_path / "spent"))
        return play_one(environment, 1, teacher, chain_sum), endpoint

    yield once
    environment._close()


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ([call(arguments="{")], "malformed arguments"),
        ([call(name="reply")], "unknown tool"),
        ([call(arguments="{}")], "arguments off the schema"),
        ([call(), call()], "several calls"),
        ([], "no tool call"),
        (None, "no tool call"),
    ],
)
def test_a_malformed_answer_is_asked_for_again_and_its_tokens_count(play: Any, bad: Any, cause: str):
    record, endpoint = play(bad, [call()])
    assert record.failed_at == ""
    assert record.asked_again == cause
    assert (record.attempts, record.prompt_tokens) == (2, 20)
    assert len(endpoint.requests) == 2


def test_after_the_last_ask_the_episode_is_a_failure_at_the_teacher(play: Any):
    record, endpoint = play([])
    assert record.failed_at == "teacher"
    assert record.reward is None
    assert len(endpoint.requests) == 3


def test_the_request_asks_for_one_call_and_shows_the_students_prompt(play: Any, chain_sum: EnvironmentSpec):
    record, endpoint = play([call()])
    request = endpoint.requests[0]
    assert (request["tool_choice"], request["parallel_tool_calls"]) == ("required", False)
    assert request["messages"] == record.messages[:2]
    assert request["messages"][0]["content"] == chain_sum.make().instructions


@pytest.mark.parametrize(("model", "limit"), [("gpt-5-mini", "max_completion_tokens"), ("qwen3-32b", "max_tokens")])
def test_each_family_of_models_is_asked_in_its_own_words(play: Any, model: str, limit: str):
    _, endpoint = play([call()], model=model)
    assert limit in endpoint.requests[0]
    assert ("temperature" in endpoint.requests[0]) == (limit == "max_tokens")


def test_a_refused_key_stops_at_once_and_is_not_shown(play: Any):
    with pytest.raises(Stop) as stop:
        play(401)
    assert "OPENAI_API_KEY" in str(stop.value)
    assert KEY not in repr(stop.value) + str(stop.value.__cause__) + str(stop.value.__context__.__class__)


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Stop, match="OPENAI_API_KEY is not set"):
        Teacher(TeacherSpec(), "http://127.0.0.1:9/v1", 1, Budget(None, None, tmp_path / "spent"))


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    settings = '{"dataset": "chain_sum"}'
    with local_server(
        "apprentice.envs.scripted_teacher", "--environment", "reasoning_gym", "--settings", settings
    ) as url:
        yield f"{url}/v1"


WINDOW = Window(start=0, size=40)


@pytest.fixture
def scripted_bench(bench: Bench, scripted: str, server: EnvironmentServer) -> Bench:
    bench.work.servers = StandingServers(server, scripted)
    return bench


def collected(bench: Bench, chain_sum: EnvironmentSpec, window: Window = WINDOW) -> tuple[dict[str, Any], bytes]:
    counts = collect_shard.body(bench, CollectSpec(), SCRIPTED, chain_sum, window)
    return counts, (bench.out / "rollouts.jsonl").read_bytes()


def test_two_collections_give_the_same_bytes(scripted_bench: Bench, chain_sum: EnvironmentSpec):
    _, first = collected(scripted_bench, chain_sum)
    (scripted_bench.scratch / "episodes.jsonl").unlink()
    assert collected(scripted_bench, chain_sum)[1] == first


def test_an_interrupted_collection_goes_on_and_its_torn_line_is_played_again(scripted_bench, chain_sum):
    counts, whole = collected(scripted_bench, chain_sum)
    journal = scripted_bench.scratch / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:10]) + lines[10][:50])
    again, rest = collected(scripted_bench, chain_sum)
    assert (again, rest) == (counts, whole)
    assert journal.read_bytes().splitlines(keepends=True)[:10] == lines[:10]


def test_a_second_collector_of_the_same_work_is_refused(scripted_bench: Bench, chain_sum: EnvironmentSpec):
    import fcntl

    with (scripted_bench.scratch / "episodes.jsonl").open("a+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Stop, match="Another run collects"):
            collected(scripted_bench, chain_sum)


def test_going_on_under_other_settings_is_refused_and_the_difference_is_shown(scripted_bench: Bench, chain_sum):
    collected(scripted_bench, chain_sum)
    with pytest.raises(Stop, match=r"teacher\.temperature: 1\.0 → 0\.5"):
        collect_shard.body(
            scripted_bench, CollectSpec(), SCRIPTED.model_copy(update={"temperature": 0.5}), chain_sum, WINDOW
        )
