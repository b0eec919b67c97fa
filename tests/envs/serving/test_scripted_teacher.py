"""The scripted teacher's server: whatever it is sent, it answers as an OpenAI-compatible endpoint does."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from apprentice.envs.reasoning_gym import datasets
from apprentice.envs.serving.scripted_teacher import make_app

QUESTION = {"role": "user", "content": "State the final answer to the following arithmetic problem: 4 + 3 ="}
REQUEST = {"model": "toy", "messages": [{"role": "system", "content": "Solve."}, QUESTION]}
ANSWER = {"type": "function", "function": {"name": "answer", "parameters": {}}}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(make_app("reasoning_gym", {"dataset": "chain_sum"}, 0.0), raise_server_exceptions=False)


def test_it_calls_the_tool(client: TestClient):
    answer = client.post("/v1/chat/completions", json=REQUEST | {"tools": [ANSWER], "seed": 1, "temperature": 0.5})
    called = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert called == {"name": "answer", "arguments": '{"answer": "7"}'}


def test_an_oracle_is_asked_by_the_questions_seed():
    entry = datasets.entry("gcd", {}, 12)[1]
    client = TestClient(make_app("reasoning_gym", {"dataset": "gcd", "config": {}}, 0.0))
    request = {"model": "toy", "messages": [{"role": "user", "content": entry["question"]}], "tools": [ANSWER]}
    answer = client.post("/v1/chat/completions", json=request | {"seed": 12}).json()
    given = json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert given == {"answer": entry["answer"]}
    assert client.post("/v1/chat/completions", json=request | {"seed": 13}).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half a JSON"),
        pytest.param(b"[" * 100_000, id="brackets"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="an empty object"),
        pytest.param(b'{"model": "toy", "messages": null}', id="null for messages"),
        pytest.param(b'{"model": "toy", "messages": []}', id="no message"),
        pytest.param(b'{"model": "toy", "messages": ["hello"]}', id="words for messages"),
        pytest.param(b'{"model": "toy", "messages": [{"role": "assistant", "content": "hello"}]}', id="no question"),
        pytest.param(b'{"model": "toy", "messages": [{"role": "user", "content": null}]}', id="null for a question"),
        pytest.param(b'{"model": "toy", "messages": [{"role": "user", "content": "Hello"}]}', id="another question"),
        pytest.param(b'{"model": "toy", "messages": [{"role": "user", "content": "4 + \\ud800:"}]}', id="surrogate"),
        pytest.param(json.dumps({**REQUEST, "tools": "all"}).encode(), id="a word for tools"),
        pytest.param(
            json.dumps({**REQUEST, "tools": [{"function": {"name": "reply"}}]}).encode(), id="other tools than its own"
        ),
        pytest.param(json.dumps({**REQUEST, "seed": "seven"}).encode(), id="a word for the seed"),
    ],
)
def test_what_it_cannot_play_is_refused_in_words(client: TestClient, body: bytes):
    answer: Any = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    error = answer.json()
    assert error.get("error", error)
    assert "Traceback" not in answer.text
    assert len(answer.content) < 2000


def test_mistakes_are_answered_as_a_model_would_send_them():
    """A call of an unknown tool or of broken JSON is a call, a call left out is none; reasoning stands beside one."""
    client = TestClient(make_app("echo", {}, 0.999999), raise_server_exceptions=False)
    tool = {"type": "function", "function": {"name": "echo", "parameters": {}}}
    ended, texts = set(), set()
    for number in range(80):
        request = {"model": "toy", "messages": [{"role": "user", "content": f"word {number}"}]}
        answer = client.post("/v1/chat/completions", json=request | {"tools": [tool]})
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        calls = choice["message"].get("tool_calls", [])
        assert choice["message"]["content"] or calls
        ended.add((choice["finish_reason"], bool(calls), bool(choice["message"]["content"])))
        written = client.post("/v1/chat/completions", json=request).json()["choices"][0]["message"]
        assert "tool_calls" not in written
        if calls:
            called = calls[0]["function"]
            text = f'{{"name": "{called["name"]}", "arguments": {called["arguments"]}}}'
            assert written["content"].endswith(f"<tool_call>\n{text}\n</tool_call>")
        texts.add(written["content"].partition("<tool_call>")[0] != "")
    assert ended == {("tool_calls", True, False), ("tool_calls", True, True), ("stop", False, True)}
    assert texts == {True, False}


def test_a_turn_that_is_asked_for_again_may_be_corrected():
    client = TestClient(make_app("echo", {}, 0.999999), raise_server_exceptions=False)
    right = 0
    for number in range(60):
        request = {"model": "toy", "messages": [{"role": "user", "content": f"word {number}"}], "ask": 2}
        said = client.post("/v1/chat/completions", json=request).json()["choices"][0]["message"]["content"]
        call = json.dumps({"name": "echo", "arguments": {"message": f"word {number}"}})
        right += said == f"<tool_call>\n{call}\n</tool_call>"
    assert 20 <= right <= 50
