"""HTTP to an endpoint that anybody may have written: no redirect is followed, and no answer is larger than it may be.

In: the SDK's requests. Out: whole answers, or `Unanswered`, `Redirected` with a cause in one line.
Why: the SDK follows redirects, decompresses whatever comes and reads it to its end.
"""

from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient

from apprentice.tasks.players.retries import Redirected, Unanswered
from apprentice.tasks.reporting.visible import one_line

LARGEST_ANSWER = 2**20
"""Bytes of an answer, besides those of its tokens."""
LARGEST_TOKEN = 64
"""Bytes of an answer for each token that it may take; a character outside of ASCII takes six in JSON."""
NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


def endpoint_client(key: str, base_url: str | None, timeout: float, max_tokens: int) -> AsyncOpenAI:
    """The SDK's client over the bounded one, which takes half the time of the SDK's default one for a request."""
    http = _Bounded(largest=LARGEST_ANSWER + LARGEST_TOKEN * max_tokens, follow_redirects=False)
    return AsyncOpenAI(api_key=key, base_url=base_url, timeout=timeout, max_retries=0, http_client=http)


class _Bounded(DefaultAioHttpClient):
    def __init__(self, largest: int, **settings: Any):
        super().__init__(**settings)
        self._largest = largest

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Raises Unanswered, Redirected."""
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
            raise Unanswered(_in_words(cause), was_sent=not isinstance(cause, NEVER_SENT)) from None
        headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in _ABOUT_THE_BODY]
        return httpx2.Response(answer.status_code, headers=headers, content=content, request=request)

    async def _read(self, answer: httpx2.Response) -> bytes:
        if answer.is_redirect or ("location" in answer.headers and 300 <= answer.status_code < 400):
            raise Redirected(_address(answer.headers.get("location", "")))
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise Unanswered(f"an answer that is compressed ({one_line(encoding)[:20]}), which nobody asked for")
        pieces, size = [], 0
        async for piece in answer.aiter_raw():
            size += len(piece)
            if size > self._largest:
                raise Unanswered(f"an answer of more than {self._largest:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)


_ABOUT_THE_BODY = ("content-length", "transfer-encoding", "content-encoding")


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "no answer in time"
    said = one_line(str(error))[:200]
    return f"connection failed: {said}" if said else f"connection failed: {type(error).__name__}"


def _address(location: str) -> str:
    """Without what may be secret in it."""
    try:
        parts = urlsplit(location)
        return one_line(f"{parts.scheme or 'the same host'}://{parts.hostname or ''}{parts.path}")[:100]
    except ValueError:
        return one_line(location)[:30]
