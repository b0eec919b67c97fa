"""A whole run, as a process, against an environment server that misbehaves: a clear stop before anything is bought."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.endings import assert_clear_exit
from tests.hostile.odd_wire import odd_wire
from tests.prefect_database import prefect_home

ROOT = Path(__file__).parent.parent.parent
COMMAND = Path(sys.executable).parent / "apprentice"


@pytest.mark.parametrize(
    ("kind", "spoils"),
    [
        ("null text", "reset"),
        ("a number for text", "reset"),
        ("a list for text", "reset"),
        ("half a surrogate", "reset"),
        ("brackets", "reset"),
        ("html", "reset"),
        ("7.0", "step"),
        ("no reward", "step"),
        ("timeout", "step"),
    ],
    ids=lambda value: value,
)
def test_a_run_ends_clearly_where_a_message_is_answered_with(kind: str, spoils: str, tmp_path: Path):
    settings = {"server.patience": 5, "server.message_timeout": 10, "store.path": tmp_path / "store"}
    with odd_wire(kind, spoils) as url:
        given = [f"--set={name}={value}" for name, value in ({"server.url": url} | settings).items()]
        ended = subprocess.run(
            [COMMAND, "run", ROOT / "deployments" / "recipes" / "echo-laptop.yaml", *given],
            cwd=tmp_path,
            env=os.environ | {"PREFECT_HOME": prefect_home(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert_clear_exit(ended)
    said = ended.stdout + ended.stderr
    assert f"{url} does not work for echo" in said, said
    remedy = "check again" if kind == "timeout" else "apprentice env serve echo"  # what comes and goes may pass
    assert remedy in said, said
    assert "Teacher's rollouts" not in said, "nothing is bought from the teacher"
