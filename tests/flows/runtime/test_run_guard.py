"""A command's run that was killed does not stay Running on Prefect's server."""

import io
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import TagsContext
from prefect.runtime import flow_run
from prefect.settings import get_current_settings
from prefect.states import Cancelling, Completed, Pending, Running, Scheduled

from apprentice.envs.serving.child import child_command
from apprentice.flows.runtime import run_guard
from apprentice.flows.runtime.run_guard import name_process

pytestmark = pytest.mark.usefixtures("prefect_server")

COMMAND = """
import sys, time
from prefect import flow, tags
from apprentice.flows.runtime.run_guard import guarded

@flow(name="guarded", flow_run_name=sys.argv[1])
def long() -> None:
    print("runs", flush=True)
    time.sleep(float(sys.argv[2]))

with guarded():
    long()
"""


def start_run(name: str, seconds: float) -> "subprocess.Popen[str]":
    environment = os.environ | get_current_settings().to_environment_variables(exclude_unset=True)
    command = [sys.executable, "-c", COMMAND, name, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    return process


def the_run(name: str) -> FlowRun:
    with get_client(sync_client=True) as client:
        (run,) = [run for run in client.read_flow_runs() if run.name == name]
    return run


def wait_for(state: str, name: str) -> Any:
    deadline = time.monotonic() + 120
    while (run := the_run(name)).state_name != state:
        assert time.monotonic() < deadline, run.state
        time.sleep(0.2)
    return run


@pytest.mark.long
def test_a_run_whose_process_is_killed_is_crashed_on_the_server():
    process = start_run("to be killed", 600)
    assert the_run("to be killed").state_name == "Running"
    os.killpg(process.pid, signal.SIGKILL)
    assert "killed" in wait_for("Crashed", "to be killed").state.message


@pytest.mark.long
def test_a_run_that_ends_by_itself_stays_as_it_ended():
    process = start_run("to end", 0.1)
    assert process.wait(timeout=120) == 0
    assert wait_for("Completed", "to end")


@pytest.mark.long
def test_a_command_s_run_bears_its_host_and_process():
    process = start_run("tagged", 0.1)
    assert "local" in the_run("tagged").tags
    assert any(tag.endswith(f":{process.pid}") for tag in the_run("tagged").tags)
    process.wait(timeout=120)


def test_unfinished_runs_with_the_tag_are_crashed_and_no_others(monkeypatch: pytest.MonkeyPatch):
    @flow
    def toy() -> None:
        """Only its runs count."""

    ended = {
        Running: "Crashed",
        Pending: "Crashed",
        Cancelling: "Crashed",
        Completed: "Completed",
        Scheduled: "Scheduled",
    }
    tag = f"host:{uuid4().hex}"
    with get_client(sync_client=True) as client:
        tagged = {state: client.create_flow_run(toy, state=state(), tags=[tag, "local"]).id for state in ended}
        other = client.create_flow_run(toy, state=Running(), tags=["local"]).id
        ignored: list[Any] = []
        monkeypatch.setattr(run_guard.signal, "signal", lambda *given: ignored.append(given))
        monkeypatch.setattr("sys.stdin", io.StringIO("what a process says before it ends"))
        run_guard.main(tag)
        assert sys.stdin.read() == ""
        found = {state: client.read_flow_run(run).state for state, run in tagged.items()}
        assert {state: each and each.name for state, each in found.items()} == ended
        assert "Its process was killed." in str(found[Running])
        assert client.read_flow_run(other).state_name == "Running"
    assert ignored == [(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_command_is_guarded_by_a_process_that_outlives_its_signals_and_sees_its_end(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    stdin = io.StringIO()
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **how: calls.append((given, how)) or SimpleNamespace(stdin=stdin)
    )
    tag = f"{socket.gethostname()}:{os.getpid()}"
    with run_guard.guarded():
        assert TagsContext.get().current_tags == {"local", tag}
        assert not stdin.closed
    assert stdin.closed
    (((command,), how),) = calls
    assert command == child_command("apprentice.flows.runtime.run_guard", tag)
    assert how == {"stdin": subprocess.PIPE, "start_new_session": True} | {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }


@pytest.mark.long
def test_a_run_that_python_started_is_tagged_with_its_process(prefect_server: None):
    @flow
    def plain() -> str:
        name_process()
        return str(flow_run.id)

    with get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(plain()))
        assert sorted(found.tags) == sorted(["local", f"{socket.gethostname()}:{os.getpid()}"])
        with tags("ada:7"):
            assert client.read_flow_run(UUID(plain())).tags == ["ada:7"]


def test_outside_of_a_run_there_is_nothing_to_tag():
    name_process()
