"""What is wrong with Prefect's settings is said with the variable and the file, by real commands and servers."""

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tenacity

from apprentice.envs.serving.process import SERVES_AT
from tests.flows.commands import BIN, TOY

DEAD = "http://127.0.0.1:9/api"
VARIABLES = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING")


def clean(home: Path) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | {"PREFECT_HOME": str(home)}


def run(folder: Path, **variables: str) -> str:
    """Run a recipe that must fail in a folder, and return what the command printed, on one line."""
    command, given = [str(BIN / "apprentice"), "run", str(TOY)], clean(folder / "prefect") | variables
    done = subprocess.run(command, cwd=folder, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (".env", "PREFECT_LOGGING_LEVEL=bogus", ["LoggingSettings.level: Input should be 'DEBUG'", "in {file}."]),
        (".env", b"\xff\xfe=1", ["Prefect reads {file}, which is not UTF-8 text"]),
        ("prefect.toml", "[api", ["invalid TOML", "in {file}."]),
    ],
)
def test_settings_that_prefect_refuses_are_named_with_the_file(
    tmp_path: Path, file: str, content: str | bytes, said: list[str]
):
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    words = run(tmp_path)
    assert all(each.format(file=tmp_path / file) in words for each in said)
    assert "Traceback" not in words


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "content"),
    [
        (".env", f"PREFECT_API_URL={DEAD}"),
        ("prefect.toml", f"[api]\nurl = '{DEAD}'"),
        ("pyproject.toml", f"[tool.prefect.api]\nurl = '{DEAD}'"),
    ],
)
def test_a_server_of_another_projects_file_is_named_with_the_file(tmp_path: Path, file: str, content: str):
    (tmp_path / file).write_text(content)
    assert f"correct PREFECT_API_URL in {tmp_path / file}, or remove it there" in run(tmp_path)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server that asks for a password."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = clean(tmp_path_factory.mktemp("guarded")) | {"PREFECT_SERVER_API_AUTH_STRING": "user:right"}
    command = [str(BIN / "prefect"), "server", "start", "--port", str(port), "--no-ui"]
    server = subprocess.Popen(
        command, env=given, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for attempt in tenacity.Retrying(stop=tenacity.stop_after_delay(90), wait=tenacity.wait_fixed(0.2)):
            with attempt:
                httpx.get(f"http://127.0.0.1:{port}/api/health")
        yield f"http://127.0.0.1:{port}/api"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "Set PREFECT_API_AUTH_STRING to the server's user:password"),
        ({"PREFECT_API_AUTH_STRING": "user:wrong-one"}, "PREFECT_API_AUTH_STRING in the environment differs from"),
        ({"PREFECT_API_KEY": "pnu_wrong-one"}, "PREFECT_API_KEY in the environment is wrong or has expired"),
    ],
)
def test_credentials_that_are_refused_are_named(tmp_path: Path, guarded: str, variables: dict[str, str], said: str):
    words = run(tmp_path, PREFECT_API_URL=guarded, **variables)
    assert f"Prefect's server at {guarded} (PREFECT_API_URL in the environment) refuses the credentials (401)" in words
    assert said in words
    assert "wrong-one" not in words


def temporary_server(home: Path, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "apprentice.flows.runtime.temporary_server"],
        env=clean(home) | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_our_own_server_has_no_password_and_does_not_touch_a_database_of_another_version(tmp_path: Path):
    server = temporary_server(tmp_path, PREFECT_SERVER_API_AUTH_STRING="user:of-another-server")
    assert server.stdout
    url = server.stdout.readline().strip().removeprefix(SERVES_AT)
    assert httpx.get(f"{url}/api/admin/version").status_code == 200
    server.communicate()
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        database.execute("update alembic_version set version_num = 'ffffffffffff'")
    server = temporary_server(tmp_path)
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 1
    assert f"wrote the database sqlite+aiosqlite:///{tmp_path / 'prefect.db'}" in errors.strip().splitlines()[-1]
