"""What an endpoint's answer is read as, whole or in chunks."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from apprentice.tasks.endpoints.endpoint_client import (
    LARGEST_ANSWER,
    LARGEST_TOKEN,
    _Bounded,
    endpoint_client,
    whole_answer,
)
from apprentice.tasks.endpoints.refusals import Redirected, Unanswered

JSON, TEXT, STREAM = ({"content-type": kind} for kind in ("application/json", "text/plain", "text/event-stream"))


def answered(content: str, headers: dict[str, str]) -> Any:
    """What `whole_answer` makes of an answer."""
    requests: list[Any] = []
    client = endpoint_client("key", "http://there/v1", 1.0, 10)

    async def post(path: str, **given: Any) -> httpx2.Response:
        requests.append((path, given["body"]))
        return httpx2.Response(200, headers=headers, text=content, request=httpx2.Request("POST", "http://there"))

    client.post = post  # type: ignore[assignment]
    found = asyncio.run(whole_answer(client, {"model": "toy"}))
    assert requests == [("/chat/completions", {"model": "toy"})]
    return found


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    whole = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "toy", "choices": [choice]} | more
    return f"data: {json.dumps(whole)}\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("content", "headers", "found"),
    [
        ('{"a": 1}', JSON, {"a": 1}),
        ('{"a": 1}', {}, {"a": 1}),
        ('{"a": 1}', TEXT, {"a": 1}),
        ("<html>", TEXT, "<html>"),
    ],
)
def test_an_answer_is_json_or_else_its_text_where_it_says_so(content: str, headers: dict[str, str], found: Any):
    assert answered(content, headers) == found


@pytest.mark.parametrize("headers", [JSON, {"content-type": ""} | JSON])
def test_what_says_that_it_is_json_and_is_none_is_refused(headers: dict[str, str]):
    with pytest.raises(ValueError, match="Expecting value"):
        answered("<html>", headers)


@pytest.mark.parametrize("usage", [None, USAGE])
@pytest.mark.parametrize("ends", [[chunk(finish="stop")], [DONE], [chunk(finish="stop"), DONE]])
def test_chunks_are_put_together_and_the_last_usage_counts(usage: Any, ends: list[str]):
    counted = [chunk(choices=[], usage={name: 1 for name in USAGE}), chunk(choices=[], usage=usage)] if usage else []
    found = answered("".join([chunk("he"), chunk("re"), *counted, *ends]), STREAM | {"x": "y"})
    (choice,) = found["choices"]
    assert choice["message"]["content"] == "here"
    assert found["model"] == "toy"
    assert found.get("usage") == usage


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "a stream without a chunk"),
        (chunk(choices=[], usage=USAGE) + DONE, "a stream without a chunk"),
        (chunk("he"), "a stream that ends early"),
        (chunk("[DONE]") + chunk("x" * 100), "a stream that ends early"),
    ],
)
def test_a_stream_that_is_not_whole_is_refused(content: str, why: str):
    with pytest.raises(ValueError, match=why):
        answered(content, STREAM)


def test_the_client_is_bounded_by_its_tokens_and_sends_what_the_address_holds_with_every_request():
    client: Any = endpoint_client("k", "http://there/v1?api-version=2&x=", 7.0, 10, {"X-Mine": "1"})
    assert client._client._largest == LARGEST_ANSWER + 10 * LARGEST_TOKEN
    assert not client._client.follow_redirects
    assert (str(client.base_url), client.timeout, client.max_retries) == ("http://there/v1/", 7.0, 0)
    assert client._custom_query == {"api-version": "2"}
    assert client._custom_headers == {"X-Mine": "1"}
    assert client.api_key == "k"
    plain: Any = endpoint_client("k", None, 1.0, 1)
    assert (plain._custom_query, plain._custom_headers) == ({}, {})


@pytest.mark.parametrize(
    ("status", "headers", "pieces", "read"),
    [
        (200, {}, [b"a", b"b"], b"ab"),
        (200, {"content-encoding": " Identity "}, [b"a"], b"a"),
        (200, {"content-encoding": ""}, [b"a"], b"a"),
        (200, {"content-encoding": "gzip"}, [b"a"], "compressed answer (gzip), which was not requested"),
        (200, {}, [b"x" * 6, b"x" * 4], b"x" * 10),
        (200, {}, [b"x" * 6, b"x" * 5], "an answer of more than 10 bytes"),
        (200, {"location": "http://there"}, [b"a"], b"a"),
        (304, {}, [b""], "the same host"),
        (302, {"location": "https://there/x?key=1"}, [b"a"], "https://there/x"),
        (300, {"location": "/x"}, [b"a"], "the same host:///x"),
        (400, {"location": "http://there"}, [b"a"], b"a"),
    ],
)
def test_an_answer_is_read_whole_where_it_is_no_redirect_not_compressed_and_not_too_long(
    status: int, headers: dict[str, str], pieces: list[bytes], read: bytes | str
):
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    answer = httpx2.Response(status, headers=headers, content=body())
    client = _Bounded(largest=10, transport=httpx2.MockTransport(lambda _: answer))
    reading = client.get("http://there")
    if isinstance(read, bytes):
        assert asyncio.run(reading).content == read
        return
    with pytest.raises(Redirected if status < 400 and status >= 300 else Unanswered) as refused:
        asyncio.run(reading)
    assert read in str(refused.value)
    assert "key=1" not in str(refused.value)
