"""Teacher's endpoints that misbehave: nothing is believed that cannot be, nothing takes for ever, no key goes astray.

A row each: what the endpoint sends for a request, byte by byte, and how a turn of the teacher ends over it.
"""

import gzip
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.endpoints.teacher import Spent, Teacher
from apprentice.tasks.reporting.errors import Stop, TeacherFailed
from apprentice.tasks.settings.endpoint import TeacherSpec
from tests.endpoint import KEY
from tests.hostile.endings import assert_clear

PRICES = {"prompt": 1.0, "cached": 0.1, "completion": 10.0}
MAX_TOKENS = 50
QUESTION = [{"role": "user", "content": "What is 40 + 2? " * 20}]
TOOL = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Hand it in.",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "answer", "arguments": '{"answer": "42"}'}}
MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
USAGE = {"prompt_tokens": 90, "completion_tokens": 9}
LONGEST = 60
"""Seconds that a turn may take on a busy machine; each is over in two where there is time."""

Answer = bytes | Iterator[bytes]


class Hostile:
    """A server that answers each request on a connection of its own with the bytes that `answer` gives, and keeps what
    it was sent."""

    def __init__(self, answer: Callable[[], Answer]):
        self._answer = answer
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._reply, args=(connection,), daemon=True).start()

    def _reply(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.requests.append(_request(connection))
                answer = self._answer()
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # until the client has read it and leaves
            except OSError:  # the client has given up
                return


def _request(connection: socket.socket) -> bytes:
    connection.settimeout(30)
    read = b""
    while b"\r\n\r\n" not in read and not read.startswith(b"\x16") and (piece := connection.recv(65536)):
        read += piece
    head, _, body = read.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length and (piece := connection.recv(65536)):
        body += piece
    return head + b"\r\n\r\n" + body


def http(body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: Any) -> bytes:
    given = {"Content_Type": kind, "Content_Length": len(body), "Connection": "close"} | headers
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def completion(message: Any = MESSAGE, **changed: Any) -> bytes:
    whole = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": USAGE}
    return http(json.dumps(whole | changed).encode())


class Played:
    """One turn of a teacher at a hostile endpoint: how it ended, in what time, and what was booked."""

    def __init__(self, url: str, folder: Path, **settings: Any):
        spec = TeacherSpec.model_validate(
            {"model": "toy", "prices": PRICES, "budget_usd": 1.0, "timeout": 30.0, "patience": 0.1}
            | {"max_tokens": MAX_TOKENS}
            | settings
        )
        self.budget = Budget(spec.prices, spec.budget_usd, folder / "spent")
        self.spent = Spent()
        self.message: dict[str, Any] | None = None
        self.ended: Exception | None = None
        teacher = Teacher(spec, url, asks=2, budget=self.budget)
        began = time.monotonic()
        try:
            self.message = teacher.reply(QUESTION, [TOOL], self.spent)
        except (Stop, TeacherFailed) as ended:
            self.ended = ended
        finally:
            self.seconds = time.monotonic() - began
            teacher.close()
        assert self.seconds < LONGEST
        assert KEY not in str(self.ended)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Played, Hostile]]]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    servers: list[Hostile] = []

    def once(answer: Callable[[], Answer], scheme: str = "http", **settings: Any) -> tuple[Played, Hostile]:
        servers.append(Hostile(answer))
        return Played(servers[-1].url.replace("http", scheme, 1), tmp_path, **settings), servers[-1]

    yield once
    for server in servers:
        server.close()


# --- what it says that an answer took ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(None, id="no usage"),
        pytest.param({}, id="an empty usage"),
        pytest.param([], id="a list for usage"),
        pytest.param("90", id="a word for usage"),
        pytest.param({"prompt_tokens": -100_000, "completion_tokens": 9}, id="negative prompt tokens"),
        pytest.param({"prompt_tokens": 90, "completion_tokens": -(10**9)}, id="negative completion tokens"),
        pytest.param({"prompt_tokens": 0, "completion_tokens": 0}, id="nothing read and nothing written"),
        pytest.param({"prompt_tokens": 10**18, "completion_tokens": 10**18}, id="more tokens than there are"),
        pytest.param({"prompt_tokens": 10**400, "completion_tokens": 9}, id="a number that no float holds"),
        pytest.param({"prompt_tokens": 1e308, "completion_tokens": math.inf}, id="1e308 and infinity"),
        pytest.param({"prompt_tokens": math.nan, "completion_tokens": 9}, id="tokens that are not a number"),
        pytest.param({"prompt_tokens": "90", "completion_tokens": "9"}, id="strings for numbers"),
        pytest.param({"prompt_tokens": True, "completion_tokens": None}, id="true and null for numbers"),
        pytest.param({"prompt_tokens": 90.5, "completion_tokens": 9}, id="half a token"),
        pytest.param(USAGE | {"prompt_tokens_details": {"cached_tokens": 10**12}}, id="cached above the prompt's"),
        pytest.param(USAGE | {"prompt_tokens_details": {"cached_tokens": -(10**12)}}, id="negative cached tokens"),
        pytest.param(USAGE | {"prompt_tokens_details": "all"}, id="a word for the prompt's details"),
        pytest.param(USAGE | {"completion_tokens_details": {"reasoning_tokens": 10**9}}, id="reasoning above all"),
    ],
)
def test_the_answer_counts_and_the_money_is_what_it_can_have_been(play: Any, usage: Any):
    played, server = play(lambda: completion(usage=usage))
    assert played.ended is None
    assert played.message["tool_calls"][0]["function"] == CALL["function"]
    request_bytes = len(server.requests[0])
    most = (request_bytes * PRICES["prompt"] + MAX_TOKENS * PRICES["completion"]) / 1_000_000
    least = (90 * PRICES["prompt"] + 9 * PRICES["completion"]) / 1_000_000
    assert least <= played.budget.spent <= most
    assert played.spent.cost_usd == played.budget.spent
    assert 0 <= played.spent.cached_tokens <= played.spent.prompt_tokens <= request_bytes
    assert 0 <= played.spent.reasoning_tokens <= played.spent.completion_tokens <= MAX_TOKENS


def test_a_usage_that_cannot_be_is_told_once(play: Any, capfd: pytest.CaptureFixture[str], monkeypatch: Any):
    from apprentice.tasks.reporting import announce

    warnings: list[str] = []
    monkeypatch.setattr(announce, "warn", warnings.append)
    play(lambda: completion(message={"content": "no"}, usage={"prompt_tokens": -(10**30), "completion_tokens": 9}))
    assert len(warnings) == 1
    assert "prompt_tokens -10^30 or so" in warnings[0]


# --- an answer that is no turn: the episode fails, and the run goes on ------------------------------------------------


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        pytest.param({"content": {"text": "42"}}, "no tool call", id="an object for the text"),
        pytest.param({"tool_calls": "answer"}, "no tool call", id="a word for the calls"),
        pytest.param({"tool_calls": [None]}, "no tool call", id="null for a call"),
        pytest.param({"tool_calls": [{"function": None}]}, "unknown tool", id="null for the function"),
        pytest.param({"tool_calls": [{}]}, "unknown tool", id="a call of nothing"),
        pytest.param(
            {"tool_calls": [{"function": {"name": "answer", "arguments": '{"answer": "\ud800"}'}}]},
            "no tool call",
            id="half a surrogate",
        ),
        pytest.param(
            {"tool_calls": [{"function": {"name": "__init__", "arguments": "{}"}}]},
            "unknown tool",
            id="a method that is no tool",
        ),
    ],
)
def test_an_answer_without_one_valid_call_is_a_failed_turn(play: Any, message: Any, cause: str):
    played, server = play(lambda: completion(message))
    assert isinstance(played.ended, TeacherFailed)
    assert cause in str(played.ended)
    assert len(server.requests) == 2  # as often as it may be asked
    assert 0 < played.budget.spent < 0.01


@pytest.mark.parametrize("choices", [None, [], {}, "one", [None], 7])
def test_an_answer_without_a_choice_is_none_and_not_the_teachers_mistake(play: Any, choices: Any):
    played, _ = play(lambda: completion(choices=choices))
    assert_clear(played.ended)
    assert "an answer without a message" in str(played.ended)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"tool_calls": [CALL, CALL]}, id="two equal calls"),
        pytest.param({"tool_calls": [CALL | {"id": 7}]}, id="a number for the id"),
        pytest.param({"tool_calls": [{"function": CALL["function"]}], "content": "I say it."}, id="text beside a call"),
        pytest.param({"function_call": CALL["function"]}, id="a function_call"),
        pytest.param({"tool_calls": [{"function": {"name": "answer", "arguments": {"answer": "42"}}}]}, id="an object"),
    ],
)
def test_a_call_in_another_form_counts(play: Any, message: Any):
    played, server = play(lambda: completion(message))
    assert played.ended is None
    (call,) = played.message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"answer": "42"}
    assert isinstance(call["id"], str)
    assert call["id"]
    assert played.message["content"] == ""
    assert len(server.requests) == 1


# --- no answer: a clear stop within the patience ----------------------------------------------------------------------

BOMB = gzip.compress(b" " * 2**27, mtime=0)
HTML = b"<html><body>Log in to the captive portal</body></html>"


def dripping(piece: bytes, begins: bytes = b"") -> Iterator[bytes]:
    """Something now and then, without end."""
    yield begins
    for again in repeat(piece):
        yield again
        time.sleep(0.05)


def endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    yield from repeat(b" " * 65536)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(lambda: http(HTML, kind="text/html"), "no chat completion: <html>", id="200 with HTML"),
        pytest.param(lambda: http(HTML), "no JSON", id="HTML that calls itself JSON"),
        pytest.param(lambda: http(b""), "no JSON", id="200 with nothing"),
        pytest.param(lambda: http(b"", status="204 No Content"), "no JSON", id="204"),
        pytest.param(lambda: http(b"[]"), "no chat completion: list", id="a list in place of an object"),
        pytest.param(lambda: http(b"null"), "no chat completion", id="null in place of an object"),
        pytest.param(lambda: http(b"[" * 200_000), "no JSON", id="200,000 brackets"),
        pytest.param(lambda: http(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "no JSON", id="JSON 100,000 deep"),
        pytest.param(lambda: http(b'{"choices": ['), "no JSON", id="half an answer"),
        pytest.param(lambda: http(b"\xff\xfe\x00\x80"), "no JSON", id="bytes that are no text"),
        pytest.param(lambda: http(b'{"usage": ' + b"9" * 5000 + b"}"), "no JSON", id="a number of 5,000 digits"),
        pytest.param(lambda: http(BOMB, Content_Encoding="gzip"), "compressed answer (gzip)", id="a gzip bomb"),
        pytest.param(lambda: http(b"1" * 2**21), "more than 1,051,776 bytes", id="an answer of 2 MB"),
        pytest.param(lambda: endless(), "more than 1,051,776 bytes", id="an endless answer"),
        pytest.param(lambda: b"", "connection failed", id="a connection that is cut"),
        pytest.param(lambda: http(b"{}", Content_Length=500), "connection failed", id="an answer that is cut"),
        pytest.param(lambda: b"SSH-2.0-OpenSSH_9.6\r\n", "connection failed", id="another protocol"),
        pytest.param(lambda: b"HTTP/1.1 200 OK\r\n" + b"a" * 10**6, "connection failed", id="a header of 1 MB"),
        pytest.param(lambda: http(b"{}", Content_Length="many"), "connection failed", id="a length in words"),
        pytest.param(lambda: http(b"{}", status="500 No"), "status 500", id="500"),
        pytest.param(lambda: http(b"{}", status="999 What"), "status 999", id="999"),
        pytest.param(lambda: http(b"{}", "429 No", Retry_After="1e9"), "status 429", id="Retry-After of 30 years"),
        pytest.param(lambda: http(b"{}", "429 No", Retry_After="inf"), "status 429", id="Retry-After of infinity"),
        pytest.param(lambda: http(b"{}", "429 No", Retry_After="nan"), "status 429", id="Retry-After of no number"),
        pytest.param(lambda: http(b"{}", "503 No", Retry_After="-1e9"), "status 503", id="Retry-After in the past"),
        pytest.param(
            lambda: http(b"{}", "503 No", Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"), "status 503", id="in 8000 years"
        ),
        pytest.param(lambda: http(b"{}", "503 No", Retry_After="soon"), "status 503", id="Retry-After in a word"),
    ],
)
def test_what_is_no_answer_ends_within_the_patience_with_cause_and_remedy(play: Any, answer: Any, words: str):
    played, server = play(answer)
    assert isinstance(played.ended, Stop)
    assert_clear(played.ended)
    assert words in str(played.ended)
    assert len(server.requests) >= 2  # it might have passed
    assert 0 <= played.budget.spent < 0.1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: dripping(b" ", http(b"", Content_Length=10**9)), id="a slow answer"),
        pytest.param(lambda: dripping(b"x: y\r\n", b"HTTP/1.1 200 OK\r\n"), id="headers without end"),
        pytest.param(lambda: dripping(b"HTTP/1.1 102 Processing\r\n\r\n"), id="1xx without end"),
        pytest.param(lambda: dripping(b""), id="silence"),
    ],
)
@pytest.mark.long
def test_what_does_not_come_to_an_end_is_given_up(play: Any, answer: Any):
    played, server = play(answer, timeout=0.3)
    assert_clear(played.ended)
    assert "no whole answer in 0.3 s" in str(played.ended)
    assert len(server.requests) >= 2
    assert 0 < played.budget.spent < 0.1


def test_tls_on_a_plain_port_is_named(play: Any):
    played, _ = play(lambda: http(HTML, status="400 Bad Request"), scheme="https")
    assert_clear(played.ended)
    assert "ssl" in str(played.ended).lower()
    assert played.budget.spent == 0.0  # nothing was sent


def test_what_was_cut_may_have_been_charged_for(play: Any):
    played, server = play(lambda: b"")
    most = len(server.requests[0]) * PRICES["prompt"] + MAX_TOKENS * PRICES["completion"]
    assert played.budget.spent > 0.5 * len(server.requests) * most / 1_000_000


def test_a_gzip_bomb_is_never_unpacked(play: Any):
    import tracemalloc

    tracemalloc.start()
    played, _ = play(lambda: http(BOMB, Content_Encoding="gzip"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(played.ended, Stop)
    assert peak < 2**26


# --- refusals: a clear stop at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(
            lambda: http(b"", "302 Found", Location="file:///etc/passwd"),
            "redirects to file:///etc/passwd",
            id="a redirect to a file",
        ),
        pytest.param(lambda: http(b"", "307 No"), "redirects to", id="a redirect to nowhere"),
        pytest.param(
            lambda: http(b"", "308 No", Location="https://host.example/v1?token=abc"),
            "redirects to https://host.example/v1;",
            id="a redirect with a secret in it",
        ),
        pytest.param(
            lambda: http(b"", "301 No", Location="http://[::1"), "redirects to", id="a redirect to no address"
        ),
        pytest.param(
            lambda: http(b"", "302 No", Location="/v1/chat/completions"), "redirects to", id="a redirect to itself"
        ),
        pytest.param(lambda: http(f"key {KEY}".encode(), "401 No"), "key ***", id="401 that quotes the key"),
        pytest.param(
            lambda: http(b'{"error": {"code": "insufficient_quota", "message": "no"}}', "429 No"),
            "refuses the account",
            id="no quota",
        ),
    ],
)
def test_a_refusal_stops_at_once_and_costs_nothing(play: Any, answer: Any, words: str):
    played, _ = play(answer)
    assert_clear(played.ended)
    assert words in str(played.ended)
    assert "token=abc" not in str(played.ended)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_neither_the_key_nor_the_question_goes_to_another_host(play: Any, status: int):
    other = Hostile(completion)
    there = other.url.replace("127.0.0.1", "localhost")
    played, server = play(lambda: http(b"", f"{status} Moved", Location=f"{there}/chat/completions"))
    other.close()
    assert_clear(played.ended)
    assert "redirects to http://localhost" in str(played.ended)
    assert KEY.encode() in server.requests[0]
    assert other.requests == []
    assert played.budget.spent == 0.0
