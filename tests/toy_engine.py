"""An engine for tests: a server that answers every request with one text, after a while.

Run: `python tests/toy_engine.py PORT TEXT`. A request may ask for its pace: `"pause": SECONDS` before each part, and
for a stream without any event: `"silent": true`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PARTS = 4
"""Of a streamed answer."""


def app(text: str) -> Starlette:
    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def complete(request: Request) -> Response:
        body = await request.json()
        pause = body.get("pause", 0.0)
        if body.get("stream"):
            events = iter(()) if body.get("silent") else stream(pause)
            return StreamingResponse(events, media_type="text/event-stream")
        await asyncio.sleep(pause)
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return JSONResponse({"model": "/a/folder", "choices": [{"message": message}], "usage": usage, "asked": body})

    async def stream(pause: float) -> AsyncIterator[str]:
        for place in range(PARTS):
            await asyncio.sleep(pause)
            delta: dict[str, Any] = {"content": text if not place else "."}
            yield f"data: {json.dumps({'model': '/a/folder', 'choices': [{'delta': delta}]})}\n\n"
        yield "data: [DONE]\n\n"

    routes = [Route("/health", health), Route("/v1/chat/completions", complete, methods=["POST"])]
    return Starlette(routes=routes)


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
