"""Serves a scripted policy as a local OpenAI-compatible endpoint: same client and protocol as a real teacher.

Run: `python -m apprentice.envs.serving.scripted_teacher --environment NAME --settings JSON`
"""

import argparse
import hashlib
import json
import time
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from apprentice.envs.catalog import policy_of
from apprentice.envs.mistakes import Turn, next_turn
from apprentice.envs.serving.process import serve


class Message(BaseModel):
    """The fields of a message that the scripts read."""

    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Function(BaseModel):
    name: str


class Tool(BaseModel):
    function: Function


class Request(BaseModel):
    """The fields of a request that are read; sampling parameters are ignored."""

    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] = []
    seed: int | None = None
    ask: int = Field(default=0, ge=0)
    """How often this turn was asked for before; not a field of OpenAI's protocol."""

    working: bool = False
    """Whether the working is written beside the call; not a field of OpenAI's protocol either."""

    def check_tool(self, name: str) -> None:
        """Raise ValueError if the request does not offer the script's tool; its last text needs none."""
        offered = [tool.function.name for tool in self.tools]
        if name and offered and name not in offered:
            raise ValueError(f"the script calls {name}, and the request offers {', '.join(offered)[:200]}")


def make_app(environment: str, settings: dict[str, Any], error_rate: float) -> FastAPI:
    policy_of(environment).check(settings)
    app = FastAPI(title="scripted teacher")
    app.exception_handler(RequestValidationError)(_refused)

    @app.post("/v1/chat/completions")
    async def complete(request: dict[str, Any]) -> Any:
        try:
            parsed = Request.model_validate(request)
            json.dumps(request["messages"], ensure_ascii=False).encode()  # rejects lone surrogates
            turn = next_turn(
                environment, settings, request["messages"], error_rate, parsed.seed, parsed.ask, parsed.working
            )
            parsed.check_tool(turn.meant)
        except Exception as error:  # a script may fail in any way on a question of another environment
            return _refused(None, error)
        return _completion(request, turn)

    return app


def _refused(_: Any, error: Exception) -> JSONResponse:
    """Return a 400 response in OpenAI's error format."""
    message = (
        f"the scripted teacher cannot play this: {type(error).__name__}: {error}"[:1000]
        .encode(errors="replace")
        .decode()
    )
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return JSONResponse(body, status_code=400)


def _completion(request: dict[str, Any], turn: Turn) -> dict[str, Any]:
    function = {"name": turn.tool, "arguments": turn.arguments}
    digest = hashlib.sha256(json.dumps(request["messages"]).encode()).hexdigest()  # the same messages, the same ids
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    if turn.tool and request.get("tools"):
        message["tool_calls"] = [{"id": f"call_{digest[:24]}", "type": "function", "function": function}]
    elif turn.tool:  # no tools offered: write the call as text, as a student would
        written_out = f'{{"name": {json.dumps(turn.tool)}, "arguments": {turn.arguments}}}'
        message["content"] = f"{turn.content}\n<tool_call>\n{written_out}\n</tool_call>".lstrip()
    read = _tokens(request["messages"]) + _tokens(request.get("tools", []))
    written = max(_tokens(function if turn.tool else {}) + (_tokens(turn.content) if turn.content else 0), 1)
    ended = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-{digest[:32]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _tokens(part: Any) -> int:
    """Estimate the tokens at four characters each: the script has no tokenizer."""
    return len(json.dumps(part)) // 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("--error-rate", type=float, default=0.1)
    given = parser.parse_args()
    serve(make_app(given.environment, given.settings, given.error_rate))


if __name__ == "__main__":
    main()
