"""A scripted policy behind a local OpenAI-compatible endpoint: same client, same wire as a real teacher.

Run: `python -m apprentice.envs.scripted_teacher --environment reasoning_gym --settings '{"dataset": "chain_sum"}'`
(prints its URL; ends with its standard input). Serves POST /v1/chat/completions, one tool call an answer; as text where
the request names no tools.
"""

import argparse
import hashlib
import importlib
import json
import time
from typing import Any

from fastapi import FastAPI

from apprentice.envs.process import serve


def policy_of(environment: str) -> Any:
    """The environment's `policy` module: `check(settings)` and `call(settings, messages, error_rate)`."""
    return importlib.import_module(f"apprentice.envs.{environment}.policy")


def make_app(environment: str, settings: dict[str, Any], error_rate: float) -> FastAPI:
    policy = policy_of(environment)
    policy.check(settings)
    app = FastAPI(title="scripted teacher")

    @app.post("/v1/chat/completions")
    async def complete(request: dict[str, Any]) -> dict[str, Any]:
        tool, arguments = policy.call(settings, request["messages"], error_rate)
        function = {"name": tool, "arguments": json.dumps(arguments)}
        asked = hashlib.sha256(json.dumps(request["messages"]).encode()).hexdigest()
        call = {
            "id": f"call_{asked[:24]}",
            "type": "function",
            "function": function,
        }  # the same words, the same record
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        if not request.get("tools"):  # it was shown none: it writes the call as a student would
            written_out = json.dumps({"name": tool, "arguments": arguments})
            message = {"role": "assistant", "content": f"<tool_call>\n{written_out}\n</tool_call>"}
        read, written = _tokens(request["messages"]) + _tokens(request.get("tools", [])), _tokens(function)
        return {
            "id": f"chatcmpl-{asked[:32]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls" if message["content"] is None else "stop",
                }
            ],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }

    return app


def _tokens(part: Any) -> int:
    """About four characters a token: an estimate, as the script has no tokenizer."""
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
