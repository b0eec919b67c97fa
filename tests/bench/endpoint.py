"""A teacher's endpoint for benches: as fast as asyncio allows, as slow as it is told to be.

Run: `python -m tests.bench.endpoint --latency-ms 200 [--close]` (prints its URL; ends with its standard input).
In: OpenAI chat completions about one dataset of Reasoning Gym. Out: one right tool call each. `--close` ends the
connection after each answer. A web framework would take longer for a request than the client under test.
"""

import argparse
import asyncio
import json
import os
import sys
import threading

from apprentice.envs.reasoning_gym import env
from apprentice.envs.serving.process import SERVES_AT


class Endpoint(asyncio.Protocol):
    def __init__(self, latency: float, close: bool, dataset: str = "chain_sum"):
        self._settings = {"dataset": dataset}
        self._latency = latency
        self._close = close
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, rest = self._heard.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) >= length:
            self._heard = rest[length:]
            asyncio.get_running_loop().call_later(self._latency, self._answer, rest[:length])

    def _answer(self, body: bytes) -> None:
        request = json.loads(body)
        tool, arguments = env.call(self._settings, request["messages"], 0.0)
        function = {"name": tool, "arguments": json.dumps(arguments)}
        message = {"role": "assistant", "tool_calls": [{"id": "call", "type": "function", "function": function}]}
        answer = {
            "id": "chatcmpl",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220},
        }
        text = json.dumps(answer).encode()
        ends = b"connection: close\r\n" if self._close else b""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n" % (ends, len(text))
        self._transport.write(head + text)
        if self._close:
            self._transport.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--close", action="store_true")
    given = parser.parse_args()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server = await asyncio.get_running_loop().create_server(
        lambda: Endpoint(given.latency_ms / 1000, given.close), "127.0.0.1", 0, backlog=1024
    )
    print(f"{SERVES_AT}http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
