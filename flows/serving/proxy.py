"""The endpoint in front of the engine: OpenAI's routes, a bound on requests, errors that say what happened.

In: requests in OpenAI's format, streamed or not. Out: the engine's answers, under the name `student`. The header
X-Apprentice-Revision names the model that answered. It answers to this machine's own names only.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from apprentice.flows.serving.backends import Backend, Backends
from apprentice.flows.serving.request_log import RequestLog
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.reporting import announce

STUDENT = "student"
"""What requests call the model; its key and its revision do as well, as long as it is the one that is served."""
FORWARDED = ("/v1/chat/completions", "/v1/completions")
REVISION = "X-Apprentice-Revision"
Done = Callable[[], None]
AGAIN_S = "2"
"""Seconds after which a refused request may be sent again."""


def _for_template(given: Any, thinks: bool) -> dict[str, Any]:
    """The template's arguments of a request. For a student that thinks the engine's own hold: its parser of thoughts
    reads the same switch."""
    given = given or {}
    if thinks:
        return {name: value for name, value in given.items() if name not in TEMPLATE_ARGUMENTS}
    return TEMPLATE_ARGUMENTS | given


def failure(status: int, kind: str, message: str) -> Any:
    """An error in OpenAI's format."""
    from starlette.responses import JSONResponse

    headers = {"Retry-After": AGAIN_S} if status in (429, 502, 503) else {}
    error = {"message": message, "type": kind, "code": status, "param": None}
    return JSONResponse({"error": error}, status, headers)


class Proxy:
    """The routes.

    Args:
        most: Requests at once; more get 429.
        log: Where requests and answers are written; None for nowhere.
    """

    def __init__(self, backends: Backends, most: int, log: RequestLog | None = None):
        import httpx

        self.backends = backends
        self._most = most
        self._log = log
        self._open = 0
        self._unwatched = ""
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5.0), trust_env=False)

    def app(self) -> Any:
        """The ASGI application; it starts the engine, and ends it."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            watching = asyncio.create_task(self.backends.watch())
            watching.add_done_callback(self._no_longer_watched)
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await self.backends.stop()
                await self._client.aclose()

        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            *(Route(each, self.forward, methods=["POST"]) for each in FORWARDED),
        ]
        own = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[own], lifespan=lifespan)

    def _no_longer_watched(self, watching: "asyncio.Task[None]") -> None:
        """Says why nobody looks at the engine and the tag any more; requests go on as long as the engine runs."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self._unwatched = f"{type(error).__name__}: {error}"
            announce.warn(f"The engine and the champion's tag are watched no more ({self._unwatched}). Start it again.")

    async def health(self, _: Any) -> Any:
        """Whether a request would be answered now, and the engine is watched."""
        from starlette.responses import JSONResponse

        current, model = self.backends.current, self.backends.model
        ready = current is not None and current.engine.is_alive and not self._unwatched
        return JSONResponse(
            {
                "status": "ok" if ready else self._unwatched or "starting",
                "engine": self.backends.target.engine,
                "key": model.key,
                "revision": model.revision,
                "requests": self._open,
                "most_requests": self._most,
                "restarts": self.backends.restarts,
            },
            200 if ready else 503,
        )

    async def models(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        model = self.backends.model
        named = {"key": model.key, "revision": model.revision, "repository": model.repository}
        entry = {"id": STUDENT, "object": "model", "created": 0, "owned_by": model.repository.partition("/")[0]}
        return JSONResponse({"object": "list", "data": [entry | named]})

    async def forward(self, request: Any) -> Any:
        """Sends a request to the engine in force, and its answer back."""
        try:
            body = json.loads(await request.body())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return failure(400, "invalid_request_error", "The body is not a JSON object.")
        backend = self.backends.current
        if backend is None or not backend.engine.is_alive:
            return failure(503, "engine_starting", "The engine is being started again; ask again in some seconds.")
        model = backend.model
        if (wanted := body.get("model", STUDENT)) not in (STUDENT, model.key, model.revision):
            known = f"Ask for {STUDENT}, or for {model.key} as long as it is served."
            return failure(404, "model_not_found", f"{wanted} is not served here. {known}")
        if self._open >= self._most:
            return failure(429, "overloaded", f"{self._most} requests are being answered (--most); ask again later.")
        done = self._counted(backend)
        try:
            return await self._answered(request.url.path, body, backend, done)
        except BaseException:
            done()
            raise

    def _counted(self, backend: Backend) -> Done:
        """Counts a request; returns what counts it as done, once however often it is called."""
        self._open += 1
        backend.requests += 1
        open_ = [backend]

        def done() -> None:
            while open_:
                self._open -= 1
                open_.pop().requests -= 1

        return done

    async def _answered(self, path: str, body: dict[str, Any], backend: Backend, done: Done) -> Any:
        """The engine's answer. It calls `done` once nothing of the answer is outstanding."""
        import httpx
        from starlette.responses import Response, StreamingResponse

        sent = body | {"model": backend.engine.model}
        if path == FORWARDED[0]:
            sent |= {"chat_template_kwargs": _for_template(body.get("chat_template_kwargs"), backend.engine.thinks)}
        headers = {REVISION: backend.model.revision}
        outgoing = self._client.build_request("POST", f"{backend.engine.url}{path}", json=sent)
        try:
            answer = await self._client.send(outgoing, stream=True)
            if body.get("stream") and answer.is_success:
                events = self._streamed(answer, body, backend, done)
                first = await anext(events, b"")  # begun, it counts as done however it ends
                return StreamingResponse(_with_first(first, events), 200, headers, media_type="text/event-stream")
            content = await answer.aread()
        except httpx.TransportError as error:
            refused = failure(502, "engine_ended", await self._why(backend, error))
            done()
            return refused
        done()
        named = _named(content)
        if self._log is not None and path == FORWARDED[0] and answer.is_success:
            self._log.write(body, json.loads(named), backend.model)
        return Response(named, answer.status_code, headers, media_type="application/json")

    async def _streamed(self, answer: Any, body: dict[str, Any], backend: Backend, done: Done) -> AsyncGenerator[bytes]:
        """The engine's events. One that breaks off ends with an event that is an error."""
        import httpx

        events: list[dict[str, Any]] = []
        try:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    line = f"data: {_named(line[6:].encode()).decode()}"
                    events.append(json.loads(line[6:]))
                yield f"{line}\n".encode()
            if self._log is not None:
                self._log.write_stream(body, events, backend.model)
        except httpx.TransportError as error:
            message = await self._why(backend, error)
            event = {"error": {"message": message, "type": "engine_ended", "code": 502, "param": None}}
            yield f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
        finally:
            await answer.aclose()
            done()

    @staticmethod
    async def _why(backend: Backend, error: Exception) -> str:
        """Why an engine broke off: the connection ends a moment before the process is known to have ended."""
        for _ in range(20):
            if not backend.engine.is_alive:
                return f"The engine ended while it answered ({backend.engine.end()}). It is started again; ask again."
            await asyncio.sleep(0.05)
        return f"The engine did not answer ({type(error).__name__}); ask again."


async def _with_first(first: bytes, others: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for each in others:
            yield each
    finally:
        await others.aclose()


def _named(content: bytes) -> bytes:
    """An answer under the student's name: an engine may call the model by its folder."""
    try:
        read = json.loads(content)
    except ValueError:
        return content
    if isinstance(read, dict) and "model" in read:
        read["model"] = STUDENT
    return json.dumps(read, ensure_ascii=False).encode()
