"""A key that a run was given stands nowhere in what it leaves: terminal, store, report, Prefect's database and logs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.endpoint import KEY, Endpoint, call
from tests.flows.test_retrain import command, environment


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        pytest.param((500, [call()]), "kept none", id="a run whose teacher stumbled"),
        pytest.param((401,), "refused the request with status 401", id="a refused key"),
    ],
)
def test_a_key_is_nowhere_in_what_a_run_leaves(tmp_path: Path, turns: tuple, words: str):
    """The endpoint quotes the key in every error, as some do."""
    endpoint = Endpoint(*turns)
    overrides = ("teacher.scripted_error_rate=null", f"teacher.base_url={endpoint.url}", "teacher.model=toy")
    done = subprocess.run(
        command(*overrides),
        cwd=tmp_path,
        env=environment(tmp_path) | {"OPENAI_API_KEY": KEY, "PREFECT_LOGGING_LEVEL": "DEBUG"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert words in done.stdout
    assert "***" in done.stdout or "401" not in words
    assert KEY not in done.stdout + done.stderr
    files = [Path(folder) / name for folder, _, names in os.walk(tmp_path) for name in names]
    assert any("prefect.db" in file.name for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]
