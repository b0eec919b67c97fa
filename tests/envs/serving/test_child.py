"""Child processes run the installed libraries, whatever files are beside them, and say where they serve."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apprentice.envs.serving.child import OURS, SAFE_PATH, child_command
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer, ServerFailed
from apprentice.envs.wire.session import Session

SAYS = 'open("{mark}", "a").write(__name__ + chr(10))\nprint("this is a script of my own")\nraise SystemExit(9)\n'
NAMES = ("random queue types json", "datasets trl prefect uvicorn", "apprentice", "torch/__init__ openenv/__init__")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, as that of a command is: not in sys.path."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", os.getcwd())])
    return folder


def write(folder: Path, name: str, code: str) -> None:
    file = folder / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)


@pytest.mark.long
@pytest.mark.parametrize("names", NAMES)
def test_files_that_are_named_like_libraries_are_not_run(names: str, here: Path, tmp_path: Path):
    for name in names.split():
        write(here, name, SAYS.format(mark=tmp_path / "ran"))
    with local_server("apprentice.envs.serving.serve", "echo") as url:
        session = Session(EnvironmentServer(url=url))
        session.close()
    assert url.startswith("http://127.0.0.1:")
    assert not (tmp_path / "ran").exists()


SERVES = """
import sys
{first}
from starlette.responses import PlainTextResponse
from apprentice.envs.serving.process import serve

async def app(scope, receive, send):
    {then}
    await PlainTextResponse("here")(scope, receive, send)

serve(app)
"""


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("print('loading the words')", "pass"),
        ("print('half a line', end='')", "pass"),
        ("print('http://127.0.0.1:1')", "pass"),
        ("print()", "pass"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "pass"),
        ("print('x' * 300_000)", "pass"),
        ("for each in range(5_000): print('one of many lines')", "pass"),
        ("", "print('x' * 300_000, flush=True)"),
        ("", "sys.stdout.write('no end'); sys.stdout.flush()"),
    ],
)
def test_what_a_module_prints_is_no_address_and_stops_no_server(
    first: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, "talkative", SERVES.format(first=first, then=then))
    monkeypatch.syspath_prepend(tmp_path)
    with local_server("talkative") as url:
        assert [httpx.get(url, timeout=20, trust_env=False).text for _ in range(3)] == ["here"] * 3


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('no words file'); raise SystemExit(4)", "code 4: no words file"),
        ("print('loading'); raise ValueError('no words')", "code 1: ValueError: no words"),
    ],
)
def test_a_server_that_fails_says_why(code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "failing", code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ServerFailed, match=f"^failing exited with {why}$"), local_server("failing"):
        raise AssertionError("it never began")


def run(module: str, *arguments: str, **variables: str) -> str:
    command, environment = child_command(module, *arguments), os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_child_finds_what_its_parent_finds_and_the_libraries_before_that(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = tmp_path / "own"
    own.mkdir()
    write(own, "random", SAYS.format(mark=tmp_path / "ran"))
    write(own, "asks", "import random, sys; print(random.__file__, __name__, *sys.argv[1:])")
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    assert run("asks", "a b", "c") == f"{os.__file__.replace('os.py', 'random.py')} __main__ a b c"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("given", "is_kept"), [(OURS, False), ("1", True)])
def test_what_an_environment_starts_sees_the_files_beside_it(given: str, is_kept: bool, here: Path, tmp_path: Path):
    write(tmp_path, "beside", "print('beside')")
    write(tmp_path, "script", "import beside")
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(tmp_path / 'script.py')!r}])"
    write(tmp_path, "starts", code)
    sys.path.append(str(tmp_path))
    assert run("starts", **{SAFE_PATH: given}) == ("" if is_kept else "beside")


def test_processes_that_a_child_starts_by_spawn_have_a_safe_path_as_well(here: Path, tmp_path: Path):
    write(here, "signal", SAYS.format(mark=tmp_path / "ran"))
    write(
        tmp_path,
        "spawns",
        "import multiprocessing, os\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(abs, (-3,)))\n",
    )
    sys.path.append(str(tmp_path))
    assert run("spawns") == "3"
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_prefects_server_migrates_its_database_with_the_installed_libraries(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Prefect's settings of Alembic put the current folder first."""
    for name in ("aiosqlite", "alembic", "random"):
        write(here, name, SAYS.format(mark=tmp_path / "ran"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    with local_server("apprentice.flows.runtime.temporary_server") as url:
        assert httpx.get(f"{url}/api/health", trust_env=False).is_success
    assert not (tmp_path / "ran").exists()
