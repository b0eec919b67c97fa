"""An HTTP client for untrusted endpoints: it follows no redirects and limits the size of answers.

In: the SDK's requests. Out: complete answers; `Unanswered` or `Redirected` with a one-line cause.
Why: the SDK's default client follows redirects, decompresses answers and reads them without a limit.
"""

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient

from apprentice.tasks.endpoints.refusals import Redirected, Unanswered
from apprentice.tasks.reporting.safe_text import one_line

LARGEST_ANSWER = 2**20
"""Maximum bytes of an answer, in addition to its tokens."""
LARGEST_TOKEN = 64
"""Maximum bytes per token of an answer; a non-ASCII character takes six bytes in JSON."""
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def endpoint_client(
    key: str, base_url: str | None, timeout: float, max_tokens: int, headers: dict[str, str] | None = None
) -> AsyncOpenAI:
    """The SDK's client on the bounded transport, which needs half the time per request of the SDK's default one.

    Args:
        base_url: May have a query, such as Azure's api-version; it is sent with every request.
        headers: Sent with every request, in place of the SDK's own of the same name.
    """
    http = _Bounded(largest=LARGEST_ANSWER + LARGEST_TOKEN * max_tokens, follow_redirects=False)
    query = dict(parse_qsl(urlsplit(base_url).query)) if base_url else {}
    url = base_url.partition("?")[0] if base_url else None
    return AsyncOpenAI(
        api_key=key,
        base_url=url,
        timeout=timeout,
        max_retries=0,
        http_client=http,
        default_query=query,
        default_headers=headers,
    )


async def whole_answer(client: AsyncOpenAI, body: dict[str, Any]) -> Any:
    """The JSON of one answer; the chunks of a streamed one are put together by the SDK. Raises ValueError."""
    answer = await client.post("/chat/completions", body=body, cast_to=httpx2.Response)
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        try:
            return json.loads(answer.content)
        except ValueError:
            if "json" in answer.headers.get("content-type", "json"):
                raise
            return answer.text
    from openai import AsyncStream
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    state = ChatCompletionStreamState()
    stream = AsyncStream(cast_to=ChatCompletionChunk, response=answer, client=client)
    usage, chunks = None, 0
    async for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices:
            state.handle_chunk(chunk)
            chunks += 1
    if not chunks:
        raise ValueError("a stream without a chunk")
    snapshot = state.current_completion_snapshot
    whole = snapshot.to_dict(mode="json")
    if not any(choice.finish_reason for choice in snapshot.choices) and b"[DONE]" not in answer.content[-64:]:
        raise ValueError("a stream that ends early")
    return whole | ({"usage": usage.to_dict(mode="json")} if usage else {})


class _Bounded(DefaultAioHttpClient):
    def __init__(self, largest: int, **settings: Any):
        super().__init__(**settings)
        self._largest = largest

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        options["stream"], options["follow_redirects"] = True, False
        try:
            answer = await super().send(request, **options)
            try:
                content = await self._read(answer)
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.__cause__ or error
            raise Unanswered(_describe(cause), was_sent=not isinstance(cause, NEVER_SENT)) from None
        headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in _ABOUT_THE_BODY]
        return httpx2.Response(answer.status_code, headers=headers, content=content, request=request)

    async def _read(self, answer: httpx2.Response) -> bytes:
        if answer.is_redirect:
            raise Redirected(_address(answer.headers.get("location", "")))
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise Unanswered(f"a compressed answer ({one_line(encoding)[:20]}), which was not requested")
        pieces, size = [], 0
        async for piece in answer.aiter_raw():
            size += len(piece)
            if size > self._largest:
                raise Unanswered(f"an answer of more than {self._largest:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)


_ABOUT_THE_BODY = ("content-length", "transfer-encoding", "content-encoding")


def _describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "no answer in time"
    return f"connection failed: {one_line(str(error))[:200] or type(error).__name__}"


def _address(location: str) -> str:
    try:
        parts = urlsplit(location)
        return one_line(f"{parts.scheme or 'the same host'}://{parts.hostname or ''}{parts.path}")[:100]
    except ValueError:
        return one_line(location)[:30]
