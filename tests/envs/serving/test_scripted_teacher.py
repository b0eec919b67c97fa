"""The scripted teacher's server: whatever it is sent, it answers as an OpenAI-compatible endpoint does."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from apprentice.envs.reasoning_gym.server import datasets
from apprentice.envs.serving.scripted_teacher import make_app

QUESTION = {"role": "user", "content": "State the final answer to the following arithmetic problem: 4 + 3 ="}
ASKED = {"model": "toy", "messages": [{"role": "system", "content": "Solve."}, QUESTION]}
ANSWER = {"type": "function", "function": {"name": "answer", "parameters": {}}}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(make_app("reasoning_gym", {"dataset": "chain_sum"}, 0.0), raise_server_exceptions=False)


def test_it_calls_the_tool(client: TestClient):
    answer = client.post("/v1/chat/completions", json=ASKED | {"tools": [ANSWER], "seed": 1, "temperature": 0.5})
    called = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert called == {"name": "answer", "arguments": '{"answer": "7"}'}


def test_an_oracle_is_asked_by_the_questions_seed():
    entry = datasets.entry("gcd", {}, 12)[1]
    client = TestClient(make_app("reasoning_gym", {"dataset": "gcd", "config": {}}, 0.0))
    asked = {"model": "toy", "messages": [{"role": "user", "content": entry["question"]}], "tools": [ANSWER]}
    answer = client.post("/v1/chat/completions", json=asked | {"seed": 12}).json()
    given = json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert given == {"answer": entry["answer"]}
    assert client.post("/v1/chat/completions", json=asked | {"seed": 13}).status_code == 400


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
        pytest.param(json.dumps({**ASKED, "tools": "all"}).encode(), id="a word for tools"),
        pytest.param(
            json.dumps({**ASKED, "tools": [{"function": {"name": "reply"}}]}).encode(), id="other tools than its own"
        ),
        pytest.param(json.dumps({**ASKED, "seed": "seven"}).encode(), id="a word for the seed"),
    ],
)
def test_what_it_cannot_play_is_refused_in_words(client: TestClient, body: bytes):
    answer: Any = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    told = answer.json()
    assert told.get("error", told)
    assert "Traceback" not in answer.text
    assert len(answer.content) < 2000
