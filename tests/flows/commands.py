"""The toy recipe as a user starts it: whole `apprentice` commands in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.prefect_database import prefect_home

ROOT = Path(__file__).parent.parent.parent
TOY = ROOT / "deployments" / "recipes" / "toy.yaml"
BIN = Path(sys.executable).parent


class Ran:
    """One finished `apprentice run`."""

    def __init__(self, code: int, out: str):
        self.code = code
        self.out = out
        self.folder = Path(out.strip().splitlines()[-1])

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(stage["name"], stage["state"]) for stage in self.report["stages"]]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PREFECT_HOME": prefect_home(home), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def command(*overrides: str) -> list[str]:
    return [
        str(BIN / "apprentice"),
        "run",
        str(TOY),
        *(part for each in overrides for part in ("--set", each)),
    ]


def apprentice(home: Path, *overrides: str) -> Ran:
    done = run_command(command(*overrides), home)
    return Ran(done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr))


def run_command(command: list[str], home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def hears_ctrl_c() -> None:
    """A shell that puts the tests into the background has them, and whatever they start, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read(repository: Path, name: str) -> list[str]:
    return [line for path in repository.glob(f"snapshots/*/{name}") for line in path.read_text().splitlines()]


def questions(repository: Path, name: str) -> set[str]:
    return {json.loads(line)["question"] for line in read(repository, name)}


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def children_of(parent: int) -> dict[int, str]:
    """Every process below `parent`: its id and command line."""
    import psutil

    return {child.pid: " ".join(child.cmdline()) for child in psutil.Process(parent).children(recursive=True)}


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.05)
