"""The temporary Prefect server starts beside the imports of a flow, and is waited for before the flow."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import httpx
import pytest
from prefect.context import refresh_global_settings_context

from apprentice.envs.wire.server import ServerFailed
from apprentice.flows.runtime import prefect_server
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.permanent_server import TEMPORARY


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No server runs or was begun; what a test starts is stopped."""
    with ExitStack() as held:
        monkeypatch.setattr(prefect_server, "_held", held)
        monkeypatch.setattr(prefect_server, "shared", lambda: False)
        monkeypatch.setattr(prefect_server, "server_url", lambda: "")
        monkeypatch.setenv("PREFECT_API_URL", "")  # restored afterwards
        monkeypatch.setenv(TEMPORARY, "")
        prefect_server._starting.cache_clear()
        yield
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


def test_no_server_is_begun_where_one_is_configured(alone, monkeypatch):
    monkeypatch.setattr(prefect_server, "server_url", lambda: "http://127.0.0.1:9/api")
    monkeypatch.setattr(prefect_server, "local_server", lambda _: pytest.fail("started"))
    prefect_server.begin_prefect_server()


@pytest.mark.parametrize("where", ["the environment", "a profile"])
def test_a_server_of_ones_own_is_asked_named_where_it_is_not_obvious_and_the_command_is_guarded(
    where: str, alone, monkeypatch
):
    checked, said, guarded = [], [], []
    monkeypatch.setattr(prefect_server, "shared", lambda: True)
    monkeypatch.setattr(prefect_server, "server_url", lambda: "http://there/api")
    monkeypatch.setattr(prefect_server, "check_answers", checked.append)
    monkeypatch.setattr(prefect_server, "set_in", lambda name: where)
    monkeypatch.setattr(prefect_server, "guarded", lambda: nullcontext(guarded.append("begun")))
    monkeypatch.setattr(prefect_server.announce, "say", said.append)
    prefect_server.start_prefect_server()
    assert (checked, guarded) == (["http://there/api"], ["begun"])
    assert said == ([] if where == "the environment" else ["Prefect's server: http://there/api, as a profile says."])


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(200, "true\n")], None),
        ([(401, "")], None),
        ([(403, "")], None),
        ([(503, ""), httpx.ConnectError("refused"), (200, "true")], None),
        ([(200, "false")] * 3, "another program answers there"),
        ([(404, "true")] * 3, "HTTP 404"),
        ([(500, "")] * 2 + [httpx.ConnectError("refused.")], "refused"),
        ([httpx.ReadTimeout("")] * 3, "ReadTimeout"),
        ([httpx.InvalidURL("no port")] * 3, "no port"),
    ],
)
@pytest.mark.parametrize("named", ["a profile", ""])
def test_a_server_is_asked_three_times_and_the_last_answer_is_told(
    answers: Any, why: str | None, named: str, monkeypatch
):
    left, slept = list(answers), []

    def get(url: str, timeout: float) -> httpx.Response:
        assert (url, timeout) == ("http://there/api/health", prefect_server.TIMEOUT)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], text=answer[1])

    monkeypatch.setattr(prefect_server.httpx, "get", get)
    monkeypatch.setattr(prefect_server.time, "sleep", slept.append)
    monkeypatch.setattr(prefect_server, "set_in", lambda name: named)
    if why is None:
        prefect_server.check_answers("http://there/api")
    else:
        where = named or "the environment"
        with pytest.raises(Stop, match=f"http://there/api does not answer: {why}\\.\n.* in {where}, or remove it"):
            prefect_server.check_answers("http://there/api")
    assert not left
    assert slept == [1.0] * (len(answers) - 1)


def test_a_proxy_that_cannot_be_used_is_told_before_a_server_is_asked(alone, monkeypatch):
    monkeypatch.setenv("http_proxy", "nonsense://there")
    with pytest.raises(Stop, match=r"The proxy set in the environment cannot be used: .*nonsense"):
        prefect_server.start_prefect_server()
