"""The temporary Prefect server starts beside the imports of a flow, and is waited for before the flow."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from prefect.context import refresh_global_settings_context

from apprentice.envs.serving.process import ServerFailed
from apprentice.flows.runtime import prefect_server
from apprentice.tasks.reporting.announce import TEMPORARY
from apprentice.tasks.reporting.errors import Stop


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No server runs or was begun; what a test starts is stopped."""
    with ExitStack() as held:
        monkeypatch.setattr(prefect_server, "_held", held)
        monkeypatch.setattr(prefect_server, "shared", lambda: False)
        monkeypatch.setattr(prefect_server, "server_url", lambda: "")
        monkeypatch.setenv("PREFECT_API_URL", "")  # restored afterwards
        monkeypatch.setenv(TEMPORARY, "")
        prefect_server._begun.cache_clear()
        yield
    monkeypatch.undo()
    prefect_server._begun.cache_clear()
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


def test_no_server_is_begun_where_one_is_configured(alone, monkeypatch):
    monkeypatch.setattr(prefect_server, "server_url", lambda: "http://127.0.0.1:9/api")
    monkeypatch.setattr(prefect_server, "local_server", lambda _: pytest.fail("started"))
    prefect_server.begin_prefect_server()
