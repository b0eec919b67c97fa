"""`apprentice dashboard` shows the curves of a store in a browser, to this machine only."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import trackio

from apprentice.flows.dashboard import show_dashboard
from apprentice.tasks.engine.trackio_folder import FOLDER
from apprentice.tasks.reporting.errors import Stop

ROOT = Path(__file__).parents[2]
TOY = ROOT / "deployments" / "recipes" / "toy.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in which a small training left its curves."""
    folder = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "tests.tasks.logging_training", str(folder)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=300)
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def dashboard(trained: Path, port: int, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """The command at work on that store; at the end it is told to end, and must."""
    command = [str(Path(sys.executable).parent / "apprentice"), "dashboard", str(TOY), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=trained,
        env=os.environ | {"PREFECT_HOME": str(trained / "prefect")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield process
    process.send_signal(request.param)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "The dashboard has stopped." in out
    assert "token" not in out, "whoever has the write token can change the curves"
    assert f"The dashboard is at http://127.0.0.1:{port}/?project=toy" in out
    with socket.create_server(("127.0.0.1", port)):
        pass  # nobody listens there any more


@pytest.mark.long
def test_the_dashboard_lists_the_recipe_s_project_and_its_runs(dashboard: "subprocess.Popen[str]", port: int):
    url = f"http://127.0.0.1:{port}"
    until_served(dashboard, f"{url}/?project=toy")
    assert "Trackio" in httpx.get(f"{url}/?project=toy").text
    assert httpx.post(f"{url}/api/get_all_projects", json={}).json()["data"] == ["toy"]
    (run,) = httpx.post(f"{url}/api/get_runs_for_project", json={"project": "toy"}).json()["data"]
    assert run["name"] == "sft toy seed 0 00000000"
    listening = [each for each in psutil.Process(dashboard.pid).net_connections() if each.status == "LISTEN"]
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("project", "port", "shown"),
    [(None, None, (None, None, "/")), ("toy-0.6b", 7000, ("toy-06b", 7000, "/?project=toy-06b"))],
)
def test_the_dashboard_is_for_this_machine_shows_one_project_or_all_and_ends_whole(
    project: str | None, port: int | None, shown: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "toy-06b.db").touch()
    curve_folders, ended, given = [], [], []
    thread = SimpleNamespace(join=lambda seconds: ended.append(f"joined {uvicorn.force_exit}"))
    uvicorn = SimpleNamespace(thread=thread, force_exit=False)
    server = SimpleNamespace(close=lambda: ended.append("closed"), _uvicorn_server=uvicorn)

    def show(name: str | None, **settings: Any) -> tuple[Any, ...]:
        print("token")
        given.append((name, settings))
        return server, "http://there/", "more"

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trackio, "show", show)
    monkeypatch.setattr("apprentice.flows.dashboard.keep_curves_in", curve_folders.append)
    monkeypatch.setattr("apprentice.flows.dashboard.Event", lambda: SimpleNamespace(wait=interrupted))
    show_dashboard(tmp_path, project, port, browser=project is None)
    settings = {"host": "127.0.0.1", "server_port": shown[1], "share": False, "block_thread": False}
    assert given == [(shown[0], settings | {"open_browser": project is None})]
    assert curve_folders == [tmp_path]
    assert ended == ["closed", "joined False", "joined True"]
    assert capsys.readouterr().out == (
        f"The dashboard is at http://there{shown[2]}; stop it with Ctrl-C.\nThe dashboard has stopped.\n"
    )


def test_where_there_are_no_curves_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Stop, match=r"no curves in .* yet"):
        show_dashboard(tmp_path, None, None, browser=False)
    (tmp_path / FOLDER).mkdir()
    for name in ("toy-06b.db", "a.db", "toy.txt"):
        (tmp_path / FOLDER / name).touch()
    with pytest.raises(Stop, match=r"no curves of laptop .* known: a, toy-06b\."):
        show_dashboard(tmp_path, "laptop", None, browser=False)
    monkeypatch.setattr("apprentice.flows.dashboard.keep_curves_in", lambda _: None)
    with pytest.raises(Stop, match="no port"), socket.create_server(("127.0.0.1", 0)) as taken:
        show_dashboard(tmp_path, "toy-0.6b", taken.getsockname()[1], browser=False)


def until_served(process: "subprocess.Popen[str]", url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.TransportError:
            assert process.poll() is None, "it ended before it served"
            assert time.monotonic() < deadline, "nothing is served"
            time.sleep(0.1)
