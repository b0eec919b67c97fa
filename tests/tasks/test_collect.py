"""Collection against a real OpenAI-compatible server and a real environment server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.process import local_server
from apprentice.envs.session import Session
from apprentice.tasks.artifacts import Questions
from apprentice.tasks.collect import collect, play_one
from apprentice.tasks.errors import Stop
from apprentice.tasks.specs import CollectSpec, TeacherSpec
from apprentice.tasks.stage import Bench
from apprentice.tasks.teacher import Teacher
from tests.conftest import FixedServers

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
def play(chain_sum: EnvironmentSpec, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Plays one episode against an endpoint that says `turns`; gives the record and the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = chain_sum.make(Session(server))

    def once(*turns: Any, model: str = "toy") -> tuple[dict[str, Any], Endpoint]:
        endpoint = Endpoint(*turns)
        teacher = Teacher(TeacherSpec(model=model), endpoint.url, asks=3)
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
    assert record["failure"] is None
    assert record["asked_again"] == [cause]
    assert (record["attempts"], record["usage"]["prompt_tokens"]) == (2, 20)
    assert len(endpoint.requests) == 2


def test_after_the_last_ask_the_episode_is_a_failure_at_the_teacher(play: Any):
    record, endpoint = play([])
    assert record["failure"]["boundary"] == "teacher"
    assert record["reward"] is None
    assert len(endpoint.requests) == 3


def test_the_request_asks_for_one_call_and_shows_the_students_prompt(play: Any, chain_sum: EnvironmentSpec):
    record, endpoint = play([call()])
    request = endpoint.requests[0]
    assert (request["tool_choice"], request["parallel_tool_calls"]) == ("required", False)
    assert request["messages"] == record["messages"][:2]
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


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Stop, match="OPENAI_API_KEY is not set"):
        Teacher(TeacherSpec(), "http://127.0.0.1:9/v1", asks=1)


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    settings = '{"dataset": "chain_sum"}'
    with local_server(
        "apprentice.envs.scripted_teacher", "--environment", "reasoning_gym", "--settings", settings
    ) as url:
        yield f"{url}/v1"


@pytest.fixture
def asked(bench: Bench, scripted: str, server: str) -> Questions:
    """A published window of forty questions to collect."""
    bench.work.servers = FixedServers(server, scripted)
    rows = [{"purpose": "collect", "seed": seed, "question": str(seed), "used": True} for seed in range(40)]
    with bench.work.store.staging() as folder:
        (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        counts = dict(collect=40, grpo=0, evaluate=0, dropped_from_grpo=0)
        return bench.work.store.publish(Questions, "k", folder, counts, {"stage": "questions"})


def collected(bench: Bench, chain_sum: EnvironmentSpec, asked: Questions) -> tuple[dict[str, Any], bytes]:
    counts = collect.body(bench, CollectSpec(), SCRIPTED, chain_sum, asked)
    return counts, (bench.out / "rollouts.jsonl").read_bytes()


def test_two_collections_give_the_same_bytes(bench: Bench, chain_sum: EnvironmentSpec, asked: Questions):
    _, first = collected(bench, chain_sum, asked)
    (bench.scratch / "episodes.jsonl").unlink()
    assert collected(bench, chain_sum, asked)[1] == first


def test_an_interrupted_collection_goes_on_and_its_torn_line_is_played_again(bench, chain_sum, asked):
    counts, whole = collected(bench, chain_sum, asked)
    journal = bench.scratch / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:10]) + lines[10][:50])
    again, rest = collected(bench, chain_sum, asked)
    assert (again, rest) == (counts, whole)
    assert journal.read_bytes().splitlines(keepends=True)[:10] == lines[:10]


def test_a_second_collector_of_the_same_work_is_refused(bench: Bench, chain_sum: EnvironmentSpec, asked: Questions):
    import fcntl

    with (bench.scratch / "episodes.jsonl").open("a+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Stop, match="Another run collects"):
            collected(bench, chain_sum, asked)
