"""A teacher's endpoint within the test's process: it says what it is told to, and keeps what it was asked."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-secret-that-no-one-may-read"


class Endpoint(ThreadingHTTPServer):
    """An endpoint that says what it is told, turn after turn; the last thing for ever.

    A turn is a list of calls, a function that makes one of the request, a status, a status with headers and perhaps a
    body, None for no choices, "cut" for a connection that is, "garbled" for half a JSON text, or "slow" for an answer
    that comes a byte now and then and never ends.
    """

    daemon_threads = True

    def __init__(self, *turns: Any, port: int = 0):
        self.turns = list(turns)
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        super().__init__(("127.0.0.1", port), Answer)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def replaced(self, *turns: Any) -> "Endpoint":
        """Another one at the same address; what was sent to this one and is still under way is not asked of it."""
        self.shutdown()
        self.server_close()
        return Endpoint(*turns, port=self.server_address[1])


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = self.rfile.read(int(self.headers["Content-Length"]))
        endpoint = self.server
        assert isinstance(endpoint, Endpoint)
        endpoint.requests.append(json.loads(request))
        endpoint.times.append(time.monotonic())
        turns = endpoint.turns
        turn = turns.pop(0) if len(turns) > 1 else turns[0]
        if callable(turn):
            turn = turn(endpoint.requests[-1])
        if turn == "cut":
            self.connection.close()
            return
        status, headers, *given = turn if isinstance(turn, tuple) else (turn if isinstance(turn, int) else 200, {})
        calls = turn if isinstance(turn, list) else []
        functions = [{"id": str(place), "type": "function", "function": call} for place, call in enumerate(calls)]
        message = {"role": "assistant", "content": None, "tool_calls": functions or None}
        body: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 0, "model": "toy"}
        body["choices"] = [] if turn is None else [{"index": 0, "finish_reason": "stop", "message": message}]
        body["usage"] = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        if status != 200:
            body = {"error": {"message": f"refused, your key is {self.headers['Authorization']}"}}
        body = given[0] if given else body
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        if turn == "garbled":
            text = text[: len(text) // 2]
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        if turn != "slow":
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            for _ in range(40 if turn == "slow" else 0):
                self.wfile.write(b" ")
                time.sleep(0.2)
            self.wfile.write(text)
        except OSError:  # the client has given up
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def call(name: str = "answer", arguments: str = '{"answer": "1"}') -> dict[str, str]:
    return {"name": name, "arguments": arguments}


def say(text: str, finish: str = "stop") -> tuple[int, dict[str, str], dict[str, Any]]:
    """A turn that is a text without a call."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return 200, {}, {"choices": [{"index": 0, "finish_reason": finish, "message": message}], "usage": usage}
