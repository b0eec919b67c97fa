"""A server that speaks the part of vLLM's protocol that TRL 1.16 uses for GRPO, less the weights, which go by NCCL."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CONFIG = {"weight_transfer_config": {"backend": "nccl"}, "model_config": {"logprobs_mode": "processed_logprobs"}}


class StandIn(ThreadingHTTPServer):
    """A vLLM server for the tests.

    Args:
        say: What the model writes after these token ids.
        config: What `/server_info` tells; None: the server was started without its development endpoints.
        models: What `/v1/models` tells.
        healthy: Whether it says that it is up.
    """

    daemon_threads = True

    def __init__(
        self,
        say: Callable[[list[int]], list[int]] = lambda ids: ids[-1:],
        config: dict[str, Any] | None = CONFIG,
        models: Any = ({"id": "student"},),
        healthy: bool = True,
    ):
        self.say, self.config, self.models, self.healthy = say, config, models, healthy
        self.requests: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def completions(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prompt-major, as vLLM answers."""
        self.requests.append(request)
        return {"choices": [self._choice(prompt) for prompt in request["prompt"] for _ in range(request["n"])]}

    def _choice(self, prompt: list[int]) -> dict[str, Any]:
        ids = self.say(prompt)
        named = [f"token_id:{token}" for token in ids]
        logprobs = {"tokens": named, "token_logprobs": [-0.5] * len(ids), "top_logprobs": [None] * len(ids)}
        return {"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs}


class Answer(BaseHTTPRequestHandler):
    server: StandIn  # type: ignore[assignment]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/health":
            self._give(None, 200 if self.server.healthy else 503)
        elif path == "/v1/models":
            self._give({"object": "list", "data": list(self.server.models)})
        elif path == "/server_info" and self.server.config is not None:
            self._give({"vllm_config": self.server.config})
        elif path == "/get_world_size":
            self._give({"world_size": 1})
        else:
            self._give({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions", self.path
        self._give(self.server.completions(request))

    def _give(self, answer: Any, status: int = 200) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is its own."""
