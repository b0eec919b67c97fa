"""A command's run that was killed does not stay Running on Prefect's server."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import get_current_settings

pytestmark = pytest.mark.usefixtures("prefect_server")

COMMAND = """
import sys, time
from prefect import flow
from apprentice.flows.runtime.run_guard import guarded

@flow(name="guarded", flow_run_name=sys.argv[1])
def long() -> None:
    print("runs", flush=True)
    time.sleep(float(sys.argv[2]))

with guarded():
    long()
"""


def begun(name: str, seconds: float) -> "subprocess.Popen[str]":
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
    process = begun("to be killed", 600)
    assert the_run("to be killed").state_name == "Running"
    os.killpg(process.pid, signal.SIGKILL)
    assert "killed" in wait_for("Crashed", "to be killed").state.message


@pytest.mark.long
def test_a_run_that_ends_by_itself_stays_as_it_ended():
    process = begun("to end", 0.1)
    assert process.wait(timeout=120) == 0
    assert wait_for("Completed", "to end")


@pytest.mark.long
def test_a_command_s_run_bears_its_host_and_process():
    process = begun("tagged", 0.1)
    assert "local" in the_run("tagged").tags
    assert any(tag.endswith(f":{process.pid}") for tag in the_run("tagged").tags)
    process.wait(timeout=120)
