"""Ctrl-C is heard wherever it comes, and ends a run soon, with all its processes."""

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from apprentice.flows.runtime.interruption import interrupt_again
from tests.flows.interrupted import COMMAND, SOON, environment, run_and_interrupt, signal_all
from tests.terminal import Terminal

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs are made: each goes on where the one before was interrupted."""
    return tmp_path_factory.mktemp("interrupted")


class Cleaned:
    """An object in whose cleaning away the key is pressed."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_ctrl_c_is_heard_though_python_drops_it_while_an_object_is_cleaned_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "unraisablehook", interrupt_again)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command has it
    Cleaned()
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(60)
    signal.signal(signal.SIGTERM, before)


def test_any_other_error_that_python_drops_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Broken:
        def __del__(self):
            raise ValueError("in cleaning away")

    monkeypatch.setattr(sys, "unraisablehook", interrupt_again)
    Broken()
    assert "ValueError: in cleaning away" in capsys.readouterr().err


def test_ctrl_c_in_a_terminal_ends_a_run_soon_in_one_line_with_all_its_processes(folder: Path):
    run_and_interrupt(folder, "SFT")


def test_sigterm_to_all_processes_of_a_run_ends_it_as_ctrl_c_does(folder: Path):
    signal_all(folder, "SFT", signal.SIGTERM)


def test_after_kill_9_no_process_of_the_run_is_left(folder: Path):
    with Terminal(COMMAND, folder, environment(folder)) as terminal:
        terminal.until("stages cached")  # the run goes on from the last finished stage
        terminal.until("▶ SFT")
        assert terminal.family()
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.ended(SOON)
        _, left = psutil.wait_procs(terminal.family(), timeout=SOON)
        assert not left, [each.cmdline() for each in left]
