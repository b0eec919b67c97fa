"""The temporary Prefect server starts beside the imports of a flow, and is waited for before the flow."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prefect.client.orchestration import get_client
from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from apprentice.envs.wire.server import ServerFailed
from apprentice.flows.runtime import prefect_server
from apprentice.flows.runtime.run_guard import LOCAL
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.permanent_server import TEMPORARY


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No server runs or was begun; what a test starts is stopped."""
    monkeypatch.setenv("PREFECT_API_URL", "")  # restored afterwards
    monkeypatch.setenv(TEMPORARY, "")
    prefect_server._starting.cache_clear()
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        yield
        prefect_server._held.close()
    monkeypatch.undo()
    prefect_server._starting.cache_clear()
    refresh_global_settings_context()


def test_a_server_that_was_begun_is_waited_for_and_started_once(alone, monkeypatch):
    answers, started = threading.Event(), []

    @contextmanager
    def slow(module: str) -> Iterator[str]:
        started.append(module)
        assert answers.wait(60)
        yield "http://127.0.0.1:9"

    monkeypatch.setattr(prefect_server, "local_server", slow)
    prefect_server.begin_prefect_server()  # returns before the server answers
    assert not os.environ["PREFECT_API_URL"]
    answers.set()
    prefect_server.start_prefect_server()
    assert os.environ["PREFECT_API_URL"] == os.environ[TEMPORARY] == "http://127.0.0.1:9/api"
    assert started == ["apprentice.flows.runtime.temporary_server"]


def test_a_server_that_fails_while_the_flow_is_imported_is_told_before_the_flow(alone, monkeypatch):
    @contextmanager
    def failing(_: str) -> Iterator[str]:
        raise ServerFailed("exited with code 3")
        yield

    monkeypatch.setattr(prefect_server, "local_server", failing)
    prefect_server.begin_prefect_server()
    with pytest.raises(Stop, match="exited with code 3"):
        prefect_server.start_prefect_server()


def test_no_server_is_begun_where_one_is_configured(alone):
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        prefect_server.begin_prefect_server()
    assert prefect_server._starting.cache_info().currsize == 0


@pytest.mark.parametrize("where", ["the environment", "Prefect's profile"])
def test_a_server_of_ones_own_is_named_where_it_is_not_obvious_and_the_command_is_guarded(
    where: str, prefect_server_url: str, monkeypatch
):
    from prefect import flow

    monkeypatch.setenv("PREFECT_API_URL", prefect_server_url if where == "the environment" else "")

    @flow
    def one() -> None:
        pass

    said: list[str] = []
    monkeypatch.setattr(announce, "say", said.append)
    try:
        prefect_server.start_prefect_server()
        state = one(return_state=True)
    finally:
        prefect_server._held.close()
    assert said == ([] if where == "the environment" else [f"Prefect's server: {prefect_server_url}, as {where} says."])
    assert state.state_details.flow_run_id is not None
    with get_client(sync_client=True) as client:
        tags = client.read_flow_run(state.state_details.flow_run_id).tags
    assert LOCAL in tags
    assert any(each.endswith(f":{os.getpid()}") for each in tags), "by which its guard finds it"


@pytest.fixture
def prefect_server_url(prefect_server) -> str:
    url = get_current_settings().api.url
    assert url
    return url


SILENT, HANGS_UP = "silent", "hangs up"


@pytest.fixture
def program() -> Iterator[Callable[..., str]]:
    """A program on a port of this machine that answers as it is told, one request after another."""
    left: list[tuple[int, str] | str] = []
    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/health"
            answer = left.pop(0)
            if answer == SILENT:
                ending.wait(60)
            if isinstance(answer, str):
                self.close_connection = True
                return
            status, body = answer
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """It prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()

        def answers(*given: tuple[int, str] | str) -> str:
            left.extend(given)
            return f"http://127.0.0.1:{served.server_port}/api"

        yield answers
        ending.set()
        served.shutdown()
    assert not left, "it is asked three times"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(200, "true\n")], None),
        ([(401, "")], None),
        ([(403, "")], None),
        ([(503, ""), HANGS_UP, (200, "true")], None),
        ([(200, "false")] * 3, "another program answers there"),
        ([(404, "true")] * 3, "HTTP 404"),
        ([(500, ""), (500, ""), HANGS_UP], "Server disconnected without sending a response"),
        ([SILENT] * 3, "timed out"),
    ],
)
def test_a_server_is_asked_three_times_and_the_last_answer_is_told(answers, why: str | None, program, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(prefect_server.time, "sleep", slept.append)
    monkeypatch.setattr(prefect_server, "TIMEOUT", 0.3 if SILENT in answers else 5.0)
    url = program(*answers)
    if why is None:
        prefect_server.check_answers(url)
    else:
        monkeypatch.setenv("PREFECT_API_URL", url)
        with pytest.raises(Stop, match=f"{url} does not answer: {why}\\.\n.* in the environment, or remove it"):
            prefect_server.check_answers(url)
    assert slept == [1.0] * (len(answers) - 1)


@pytest.mark.parametrize(
    ("url", "why"), [("http://127.0.0.1:9/api", "Connection refused"), ("http://127.0.0.1:port/api", "Invalid port")]
)
def test_a_server_that_is_not_there_is_told_with_the_cause(url: str, why: str, monkeypatch):
    monkeypatch.setattr(prefect_server.time, "sleep", lambda _: None)
    with pytest.raises(Stop, match=rf"{url} does not answer: .*{why}"):
        prefect_server.check_answers(url)


def test_a_proxy_that_cannot_be_used_is_told_before_a_server_is_asked(alone, monkeypatch):
    monkeypatch.setenv("http_proxy", "nonsense://there")
    with pytest.raises(Stop, match=r"The proxy set in the environment cannot be used: .*nonsense"):
        prefect_server.start_prefect_server()
