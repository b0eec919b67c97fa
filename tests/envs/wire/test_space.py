"""A Space that does not answer: its stage is read from the Hub and it is woken where that is possible."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.breaker import Space
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost


class Hub(ThreadingHTTPServer):
    """The part of the Hub that knows one Space."""

    daemon_threads = True

    def __init__(self):
        self.stage = "RUNNING"
        self.restarts = 0
        self.refuse = False
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    server: Hub  # type: ignore[assignment]

    def do_GET(self) -> None:
        assert self.path == "/api/spaces/owner/wordle/runtime"
        self._say(200)

    def do_POST(self) -> None:
        assert self.path.startswith("/api/spaces/owner/wordle/restart")
        self.server.restarts += 1
        self._say(403 if self.server.refuse else 200)

    def _say(self, status: int) -> None:
        runtime = {"stage": self.server.stage, "hardware": {"current": None, "requested": None}, "storage": None}
        text = json.dumps(runtime).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.shutdown()


@pytest.fixture
def space(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Space:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return Space("owner/wordle", HfApi(endpoint=f"http://127.0.0.1:{hub.server_address[1]}", token="hf_x"))


@pytest.mark.parametrize("stage", ["SLEEPING", "PAUSED", "RUNTIME_ERROR"])
def test_a_space_that_a_restart_helps_is_restarted_once(hub: Hub, space: Space, stage: str):
    hub.stage = stage
    space.wake()
    space.wake()
    assert hub.restarts == 1
    assert stage in str(space)
    hub.stage = "BUILDING"
    space.wake()
    hub.stage = stage
    space.wake()
    assert hub.restarts == 2


def test_a_space_that_builds_is_waited_for(hub: Hub, space: Space):
    hub.stage = "BUILDING"
    space.wake()
    assert hub.restarts == 0
    assert str(space) == "Space owner/wordle: stage BUILDING"


def test_a_refused_restart_says_who_can(hub: Hub, space: Space):
    hub.stage, hub.refuse = "PAUSED", True
    space.wake()
    assert "stage PAUSED; a restart was refused (status 403): its owner must restart it" in str(space)


def test_a_hub_that_is_away_is_no_reason_to_fail():
    space = Space("owner/wordle", HfApi(endpoint="http://127.0.0.1:9"))
    space.wake()
    assert "did not return its stage" in str(space)


def test_an_outage_of_a_space_is_told_with_its_stage(
    hub: Hub, space: Space, monkeypatch: pytest.MonkeyPatch, chain_sum: EnvironmentSpec
):
    hub.stage = "SLEEPING"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{hub.server_address[1]}")
    said: list[str] = []
    server = EnvironmentServer(url="http://127.0.0.1:9", space="owner/wordle", patience=1.0)
    with (
        EnvironmentPool(chain_sum, server, 2, said.append) as pool,
        pytest.raises(SessionLost, match=r"was down .* \(Space owner/wordle: stage SLEEPING"),
    ):
        list(pool.map(lambda environment, seed: environment.ask(seed), range(3)))
    assert any("stage SLEEPING; a restart was requested. Next try in" in text for text in said)
