"""How a local server ends: with the last thing that it wrote, and never after its parent."""

import sys
import tempfile
from typing import Any

import pytest

from apprentice.envs.serving import process
from apprentice.envs.serving.child import child_command
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import ServerFailed


@pytest.mark.parametrize(
    ("written", "last"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\n two \n\nERROR:    Application startup failed. Exiting.\n", ": two"),
        (b"ERROR: only\n", ""),
        (b"bad \xff byte\n", ": bad \ufffd byte"),
        (b"a" * 400, f": {'a' * 300}"),
        (b"x" * 70_000 + b"\nlast", ": last"),
        (b"first\n" + b"\n" * 65_536, ""),
    ],
)
def test_thelast_line_is_what_ended_a_server_and_not_what_uvicorn_says_of_it(written: bytes, last: str):
    with tempfile.TemporaryFile() as errors:
        errors.write(written)
        assert process.last_line(errors) == last


def start_as(code: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a server is started with; in its place runs some code."""
    starts: list[Any] = []
    popen = process.subprocess.Popen

    def instead(command: list[str], **how: Any) -> Any:
        starts.append((command, how["env"]["PYTHONHASHSEED"], how["start_new_session"]))
        return popen([sys.executable, "-c", code], **how)

    monkeypatch.setattr(process.subprocess, "Popen", instead)
    return starts


def test_a_server_is_told_its_arguments_and_ends_when_its_input_closes(monkeypatch: pytest.MonkeyPatch):
    starts = start_as(
        "print('apprentice serves at http://there', flush=True); import sys; sys.stdin.read()", monkeypatch
    )
    with local_server("a.module", "--of", "mine") as url:
        assert url == "http://there"
    assert starts == [(child_command("a.module", "--of", "mine"), "0", True)]


@pytest.mark.parametrize("shows", [True, False])
def test_a_server_that_exits_before_it_is_ready_is_told_with_its_code(shows: bool, monkeypatch: pytest.MonkeyPatch):
    start_as("import sys; sys.stderr.write('no such game'); sys.exit(3)", monkeypatch)
    monkeypatch.setattr(process, "debugging", lambda: shows)
    reason = "" if shows else ": no such game"
    with pytest.raises(ServerFailed, match=f"^a.module exited with code 3{reason}$"), local_server("a.module"):
        raise AssertionError("it never began")


def test_a_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch):
    code = "import signal, time; print('apprentice serves at http://there', flush=True); time.sleep(60)"
    start_as(code, monkeypatch)
    popen, ended = process.subprocess.Popen, []

    def impatient(*given: Any, **how: Any) -> Any:
        child = popen(*given, **how)
        wait = child.wait
        child.wait = lambda timeout=None: ended.append(wait(timeout and 0.1)) or ended[-1]
        return child

    monkeypatch.setattr(process.subprocess, "Popen", impatient)
    with local_server("a.module"):
        pass
    assert ended == [-9]
