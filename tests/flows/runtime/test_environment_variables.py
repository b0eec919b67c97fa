"""Folders and certificates that libraries look for by a variable are checked before the libraries are imported."""

import os
import subprocess
from pathlib import Path
from typing import Any

import certifi
import pytest

from apprentice.flows.runtime import environment_variables
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import BIN

DEAD = "http://127.0.0.1:9/api"


def test_a_folder_can_be_written_if_a_file_fits_into_it_whether_or_not_it_is_there(tmp_path: Path, monkeypatch: Any):
    assert environment_variables._can_be_written(tmp_path / "a" / "b")
    assert environment_variables._can_be_written(tmp_path / "a" / "b"), "it is there by now"
    (tmp_path / "file").touch()
    assert not environment_variables._can_be_written(tmp_path / "file" / "b")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment_variables._can_be_written(Path("~/mine"))
    assert (tmp_path / "mine").is_dir()
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("variable", environment_variables.CERTIFICATES)
@pytest.mark.parametrize(
    ("kind", "why"),
    [("nothing", "does not exist"), ("text", "has no certificate that can be read"), ("folder", "is a folder")],
)
def test_certificates_that_are_not_there_are_named_with_their_variable(
    variable: str, kind: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for each in environment_variables.CERTIFICATES:
        monkeypatch.delenv(each, raising=False)
    there = tmp_path / "there"
    if kind == "text":
        there.write_text("nothing of that kind")
        why = "is no folder" if variable == "SSL_CERT_DIR" else why
    if kind == "folder":
        there.mkdir()
    monkeypatch.setenv(variable, str(there))
    if kind == "folder" and not variable.endswith("SSL_CERT_FILE"):
        environment_variables.check_certificates()
        return
    with pytest.raises(Stop, match=f"{variable} names {there}, which {why}(?s:.*)unset {variable}"):
        environment_variables.check_certificates()


@pytest.mark.parametrize(
    ("variable", "given"),
    [("SSL_CERT_FILE", ""), ("SSL_CERT_FILE", certifi.where()), ("SSL_CERT_DIR", "/no/such:{here}")],
)
def test_certificates_that_are_there_or_not_named_are_not_spoken_of(
    variable: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, given.replace("{here}", str(tmp_path)))
    environment_variables.check_certificates()


@pytest.mark.long
@pytest.mark.parametrize("command", ["run toy", "deploy toy", "status", "setup", "env check echo"])
def test_a_command_that_connects_says_so_first(command: str, tmp_path: Path):
    given = os.environ | {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": DEAD, "SSL_CERT_FILE": "/no/such.pem"}
    words = [str(BIN / "apprentice"), *command.split()]
    done = subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "SSL_CERT_FILE names /no/such.pem, which does not exist."
    assert "Traceback" not in done.stderr
