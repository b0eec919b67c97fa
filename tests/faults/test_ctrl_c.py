"""Ctrl-C at every stage of a run, in a terminal: each ends soon, and the next run goes on."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.flows.interrupted import COMMAND, STAGES, check_end, environment, run_and_interrupt, signal_all
from tests.terminal import CTRL_C, Terminal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs are made: each goes on where the one before was interrupted."""
    return tmp_path_factory.mktemp("interrupted")


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_ends_it_soon(stage: str, folder: Path):
    run_and_interrupt(folder, stage)


def test_ctrl_c_while_prefects_server_starts_ends_it_soon(folder: Path):
    with Terminal(COMMAND, folder, environment(folder)) as terminal:
        deadline = time.monotonic() + 120
        while not terminal.family():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.press(CTRL_C)
        check_end(terminal)


def test_ctrl_c_pressed_three_times_ends_it_in_one_line(folder: Path):
    with Terminal(COMMAND, folder, environment(folder)) as terminal:
        terminal.until("▶ Release")
        for _ in range(3):
            terminal.press(CTRL_C)
            time.sleep(0.2)
        check_end(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_all_processes_ends_it_as_ctrl_c_does(number: signal.Signals, folder: Path):
    signal_all(folder, "Release", number)


def test_the_last_run_comes_to_its_report(folder: Path):
    subprocess.run(COMMAND, cwd=folder, env=os.environ | environment(folder), check=True)
    assert [*(folder / "runs").glob("*/report.md")]
