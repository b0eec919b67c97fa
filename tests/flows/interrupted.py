"""The toy recipe in a terminal, interrupted at a stage: what Ctrl-C owes a person, wherever it comes."""

import sys
from pathlib import Path

import psutil

from tests.prefect_database import prefect_home
from tests.terminal import CTRL_C, Terminal

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = str(Path(sys.executable).with_name("apprentice"))
COMMAND = [APPRENTICE, "run", str(ROOT / "deployments/recipes/toy.yaml")]
STAGES = [
    "Questions of the seed windows",
    "Teacher's rollouts",
    "Filter by reward",
    "Student",
    "Token lengths",
    "SFT",
    "Questions of the probe",
    "Probe of sft",
    "GRPO",
    "Evaluation of base in reasoning_gym",
    "Evaluation of sft in reasoning_gym",
    "Evaluation of grpo in reasoning_gym",
    "Questions of a regression evaluation",
    "Comparison and diagnosis",
    "Gate",
    "Release",
]
SOON = 30.0
"""Seconds: on an idle machine it is less than 5; the tests' machine may do other things."""


def environment(folder: Path) -> dict[str, str]:
    return {"PREFECT_HOME": prefect_home(folder), "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "PREFECT_API_URL": ""}


def run_and_interrupt(folder: Path, stage: str) -> None:
    """Presses Ctrl-C as soon as a stage begins, and checks how the command ends."""
    with Terminal(COMMAND, folder, environment(folder)) as terminal:
        terminal.until(f"▶ {stage}")
        assert terminal.family(), "no server runs: nothing is tried"
        terminal.press(CTRL_C)
        check_end(terminal)


def signal_all(folder: Path, stage: str, number: int) -> None:
    """Signals all processes of a run in a stage, as systemd and schedulers do, and checks how the command ends."""
    with Terminal(COMMAND, folder, environment(folder)) as terminal:
        terminal.until(f"▶ {stage}")
        for each in [*terminal.family(), psutil.Process(terminal.pid)]:
            each.send_signal(number)
        check_end(terminal)


def check_end(terminal: Terminal) -> None:
    assert terminal.ended(SOON) == 130, terminal.output
    assert terminal.output.count("Interrupted.") == 1, terminal.output
    assert "Traceback" not in terminal.output, terminal.output
    assert "Error" not in terminal.output, terminal.output
    _, left = psutil.wait_procs(terminal.family(), timeout=SOON)
    assert not left, [each.cmdline() for each in left]
