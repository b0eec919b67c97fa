"""`apprentice env build` writes a folder that OpenEnv's own tools validate and publish, and that runs alone."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi, constants, hf_api
from openenv.cli.__main__ import app as openenv
from openenv.cli._cli_utils import validate_env_structure
from openenv.cli._validation import validate_running_environment
from typer.testing import CliRunner

from apprentice.deployments import spaces
from apprentice.deployments.cli import app
from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Reply, Session, SessionLost
from apprentice.tasks.reporting.errors import Stop
from tests.hub_server import LocalHub
from tests.scripted import a_task, play
from tests.wheel import unpacked

SUCCESSOR = importlib.util.find_spec("openenv.validation") is not None
"""Whether this is openenv 0.10, and not openenv-core."""
AT_REST = ["--level", "static", "--skip-build"]
"""Without Docker."""
ROOT = Path(__file__).parent.parent.parent
ALONE = (
    "import sys; sys.modules['apprentice'] = None; from uvicorn import main; main(['server.app:app', '--port', '0'])"
)
"""As the Dockerfile starts it, where this project is not installed."""

TYPED = """
import importlib.util, json, sys
name, url, question = sys.argv[1:]
spec = importlib.util.spec_from_file_location("alone", f"{name}/__init__.py", submodule_search_locations=[name])
sys.modules["apprentice"], sys.modules["alone"] = None, importlib.util.module_from_spec(spec)
import alone.client
client = next(one for one in vars(alone.client).values() if getattr(one, "__module__", "") == "alone.client")
with client(base_url=url).sync() as player:
    result = player.reset(**json.loads(question))
    print(type(result.observation).__name__, result.done, player.state().step_count)
"""
"""What somebody does who has this folder and not the rest."""


LONG = [pytest.param(name, marks=pytest.mark.long) for name in spaces.served() if name != "echo"]


@pytest.fixture(params=["echo", *LONG])
def name(request: pytest.FixtureRequest) -> str:
    extra, module = environment_class(request.param).extra
    if extra and importlib.util.find_spec(module) is None:
        pytest.skip(f"needs openenv-apprentice[{extra}]")
    return request.param


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    running = LocalHub(tmp_path / "hub")
    template = running.url + constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    settings = {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "ENDPOINT": running.url}
    for setting, value in (settings | {"HUGGINGFACE_CO_URL_TEMPLATE": template}).items():
        monkeypatch.setattr(constants, setting, value)
    monkeypatch.setattr(hf_api.api, "endpoint", running.url)  # asks who one is
    monkeypatch.setenv("HF_TOKEN", "write")
    yield running
    running.kill()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spaces")


@pytest.fixture
def folder(name: str, out: Path) -> Path:
    """What is built, locked where uv and PyPI are there; once an environment."""
    return out / name if (out / name).exists() else spaces.build(name, out, spaces.find_uv())


@pytest.fixture
def locked(folder: Path) -> Path:
    if not (folder / "uv.lock").exists():
        pytest.skip("needs uv (openenv-apprentice[dev]) and PyPI")
    return folder


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[str]:
    """The URL of the server of a folder that lies alone, in a process that cannot import this project."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = (
        kept | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "GRADIO_ANALYTICS_ENABLED": "False"} | variables
    )
    log = folder.parent / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", ALONE], cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        while not (found := re.search(r"running on (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


@pytest.mark.long
def test_openenv_validates_the_folder(locked: Path):
    done = CliRunner().invoke(openenv, ["validate", str(locked), *(AT_REST if SUCCESSOR else ["--verbose"])])
    assert done.exit_code == 0, done.output
    assert ("Verdict: PASS" if SUCCESSOR else "Ready for multi-mode deployment") in done.output
    assert "[NO]" not in done.output
    assert "FAIL " not in done.output


def test_the_page_tells_a_space_how_to_run_it(folder: Path):
    matter = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert matter["sdk"] == "docker"
    assert matter["app_port"] == yaml.safe_load((folder / "openenv.yaml").read_text())["port"] == 8000
    assert "openenv" in matter["tags"]
    assert matter["title"]
    assert len(matter["emoji"]) <= 2
    assert {matter["colorFrom"], matter["colorTo"]} <= {
        "red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"
    }  # fmt: skip


@pytest.mark.long
def test_the_lock_is_of_this_pyproject_and_names_pypi_and_nothing_else(locked: Path):
    project = tomllib.loads((locked / "pyproject.toml").read_text())["project"]
    packages = tomllib.loads((locked / "uv.lock").read_text())["package"]
    own = next(package for package in packages if package["name"] == project["name"])
    requirements = {re.split(r"[\[><=]", each)[0].lower().replace("_", "-"): each for each in project["dependencies"]}
    assert {each["name"] for each in own["metadata"]["requires-dist"]} == requirements.keys()
    for package in packages:
        if package is not own:
            assert package["source"] == {"registry": "https://pypi.org/simple"}
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            assert all(file["url"].startswith("https://files.pythonhosted.org/") for file in files)


def test_the_server_imports_nothing_of_this_project(folder: Path):
    texts = [file.read_text() for file in (folder / "server").rglob("*.py") if file.name != "app.py"]
    assert "apprentice" not in spaces.imported(texts)
    assert not any("from .." in text for text in texts)


def question_of(task: EnvironmentSpec) -> dict[str, Any]:
    """What the environment sends at a reset."""
    sent: list[dict[str, Any]] = []

    class Deaf(Session):
        def reset(self, **question: Any) -> Reply:
            sent.append(question)
            raise SessionLost

    with pytest.raises(SessionLost):
        task.make(Deaf(EnvironmentServer())).ask(3)
    return sent[0]


@pytest.mark.long
def test_openenv_publishes_it_and_the_space_serves_alone_as_openenv_demands(
    name: str, folder: Path, hub: LocalHub, tmp_path: Path
):
    """A policy of this project plays it, and so does its own typed client, where this project is not installed."""
    assert validate_env_structure(folder) == ["Recommended directory missing: outputs/"]
    done = CliRunner().invoke(openenv, ["push", str(folder), "--repo-id", f"team/{name}"])
    assert done.exit_code == 0, done.output
    api = HfApi(endpoint=hub.url)
    info = api.space_info(f"team/{name}")
    assert info.sdk == "docker"
    files = {sibling.rfilename for sibling in info.siblings or []}
    assert {*spaces.GENERATED, "README.md", "__init__.py", "server/game.py"} <= files
    assert not any("__pycache__" in file for file in files)
    capacity = api.get_space_variables(f"team/{name}")["MAX_CONCURRENT_ENVS"].value
    assert capacity == str(spaces.CAPACITY)
    space = Path(api.snapshot_download(f"team/{name}", repo_type="space", local_dir=tmp_path / "space" / name))
    docker = dict(re.findall(r"(\w+)=(\S+)", (space / "Dockerfile").read_text()))
    assert docker["ENABLE_WEB_INTERFACE"] == "true"
    task = a_task(name)
    with serving(space, ENABLE_WEB_INTERFACE="true", MAX_CONCURRENT_ENVS="3") as url:
        assert validate_running_environment(url, timeout_s=60)["passed"]
        assert play(task, url, seed=12).reward == 1.0
        command = [sys.executable, "-P", "-c", TYPED, name, url, json.dumps(question_of(task))]
        done = subprocess.run(command, cwd=space.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spaces.values_of(name)["observation"], "False", "0"]


def test_without_uv_the_folder_lacks_the_lock_and_its_dockerfile_does_without(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(spaces, "find_uv", lambda: None)
    done = CliRunner().invoke(app, ["env", "build", "echo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "no uv.lock is written" in done.output.splitlines()[0]
    assert done.output.splitlines()[-1] == str(tmp_path / "echo")
    assert not (tmp_path / "echo" / "uv.lock").exists()
    docker = (tmp_path / "echo" / "Dockerfile").read_text()
    assert "uv.lock" not in docker
    assert "uv sync --no-dev" in docker


def test_a_lock_that_fails_is_told_and_the_folder_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    broken = tmp_path / "uv"
    broken.write_text("#!/bin/sh\necho no route to host >&2; exit 2\n")
    broken.chmod(0o755)
    assert "uv.lock" not in (spaces.build("echo", tmp_path / "out", str(broken)) / "Dockerfile").read_text()
    assert "uv could not lock echo: no route to host" in capsys.readouterr().err


def test_it_is_built_anew_and_other_folders_are_left_alone(tmp_path: Path):
    stale = spaces.build("echo", tmp_path, None) / "server" / "stale.py"
    stale.touch()
    spaces.build("echo", tmp_path, None)
    assert not stale.exists()
    (tmp_path / "catch").mkdir()
    (tmp_path / "catch" / "notes.txt").touch()
    with pytest.raises(Stop, match=r"holds other files.*\n.*--out"):
        spaces.build("catch", tmp_path, None)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["env", "build", "echo", "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert "cannot be written: Not a directory" in done.output.replace("\n", " ")


def test_what_has_no_server_is_not_built(tmp_path: Path):
    with pytest.raises(Stop, match=r"multi has no server to build"):
        spaces.build("multi", tmp_path, None)


def test_an_extra_that_is_not_installed_is_still_required(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spaces, "packages_distributions", dict)
    assert {each.partition(">")[0] for each in spaces.requirements("catch")} == {"open_spiel", "openenv-core[core]"}
    assert "browsergym-core" in {each.partition(">")[0] for each in spaces.requirements("browsergym")}


@pytest.mark.long
def test_it_is_built_from_an_installed_wheel_as_well(tmp_path: Path):
    installed = unpacked(tmp_path)
    build = "from apprentice.deployments import spaces as s; print(s.__file__); s.build('catch', s.Path('out'), None)"
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "apprentice/deployments/spaces.py")
    ours = spaces.build("catch", tmp_path / "checkout", None)
    files = {file.relative_to(ours) for file in ours.rglob("*") if file.is_file()}
    assert {file.name for file in files} >= {"app.py", "board.py", "README.md", "Dockerfile"}
    for file in files:
        assert (tmp_path / "out/catch" / file).read_bytes() == (ours / file).read_bytes(), file
