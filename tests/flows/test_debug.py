"""What nobody foresaw is told in two lines; where it happened, only under `--debug`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.endings import assert_clear_exit

APPRENTICE = str(Path(sys.executable).with_name("apprentice"))
BROKEN = """
from pathlib import Path
from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.runtime.environment_variables import ready

with exit_with_message():
    ready()
    from prefect import flow, task

    @task(retries=0)
    def stage() -> None:
        raise ValueError("an oddity\\nin two lines")

    @flow
    def run() -> None:
        stage()

    from apprentice.flows.runtime.prefect_server import start_prefect_server
    start_prefect_server()
    run()
"""


def broken(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    surroundings = {**os.environ, "PREFECT_HOME": str(folder), "PREFECT_API_URL": "", **environment}
    command = [sys.executable, "-c", BROKEN]
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_an_unforeseen_error_is_one_line_of_cause_and_one_of_remedy(tmp_path: Path):
    ended = broken(tmp_path)
    assert_clear_exit(ended)
    assert ended.stdout.splitlines()[0] == "ValueError: an oddity in two lines"
    assert "--debug" in ended.stdout.splitlines()[1]
    assert len(ended.stdout.splitlines()) == 2
    assert "xception" not in ended.stderr, "Prefect logged it"


@pytest.mark.long
def test_under_debug_it_is_shown_where_it_happened(tmp_path: Path):
    ended = broken(tmp_path, APPRENTICE_DEBUG="1")
    assert ended.returncode == 1
    assert "Traceback (most recent call last)" in ended.stderr
    assert "ValueError: an oddity" in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--debug", "run", "none.yaml"], ["run", "none.yaml", "--debug"]])
def test_debug_may_stand_anywhere(arguments: list[str], tmp_path: Path):
    ended = subprocess.run([APPRENTICE, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert "Traceback (most recent call last)" in ended.stderr
    assert "none.yaml" in ended.stdout
