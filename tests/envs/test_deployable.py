"""Each environment's folder is what OpenEnv's own tools take: they validate it, publish it, and it runs alone."""

import importlib.util
import json
import os
import re
import shutil
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
from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.scripted_teacher import policy_of
from apprentice.envs.server import EnvironmentServer
from apprentice.envs.session import Reply, Session, SessionLost
from apprentice.tasks.episode import Episode
from tests.hub_server import LocalHub

RECIPES = Path(__file__).parent.parent.parent / "deployments" / "recipes"
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


@pytest.fixture(params=spaces.served())
def name(request: pytest.FixtureRequest) -> str:
    extra, module = environment_class(request.param).extra
    if extra and importlib.util.find_spec(module) is None:
        pytest.skip(f"needs apprentice[{extra}]")
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


def copied(name: str, to: Path) -> Path:
    return shutil.copytree(spaces.ENVS / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))


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


def a_task(name: str) -> EnvironmentSpec:
    """What a recipe asks of this environment, and a script can play; its default settings where there is none."""
    for file in sorted(RECIPES.glob("*.yaml")):
        given = yaml.safe_load(file.read_text())["environment"]
        if given["name"] == name and "laptop" in file.name:
            return EnvironmentSpec(**given)
    return EnvironmentSpec(name=name)


def play(task: EnvironmentSpec, url: str, seed: int) -> Episode:
    """An episode of the scripted policy that makes no mistakes."""
    session = Session(EnvironmentServer(url=url))
    episode = Episode(task.make(session), seed)
    while not episode.done:
        tool, arguments = policy_of(task.name).call(task.settings, episode.messages, 0.0)
        episode.hear({"role": "assistant", "tool_calls": [{"function": {"name": tool, "arguments": arguments}}]})
    session.close()
    return episode


def test_what_is_written_by_the_tool_is_what_it_would_write_today(name: str):
    for file, text in spaces.files_of(name).items():
        assert (spaces.ENVS / name / file).read_text() == text, f"make spaces ENV={name}"


def test_openenv_validates_the_folder(name: str):
    done = CliRunner().invoke(openenv, ["validate", str(spaces.ENVS / name), "--verbose"])
    assert done.exit_code == 0, done.output
    assert "Ready for multi-mode deployment" in done.output
    assert "[NO]" not in done.output


def test_the_page_tells_a_space_how_to_run_it(name: str):
    matter = yaml.safe_load((spaces.ENVS / name / "README.md").read_text().split("---\n")[1])
    assert matter["sdk"] == "docker"
    assert matter["app_port"] == yaml.safe_load((spaces.ENVS / name / "openenv.yaml").read_text())["port"] == 8000
    assert "openenv" in matter["tags"]
    assert matter["title"]
    assert len(matter["emoji"]) <= 2
    assert {matter["colorFrom"], matter["colorTo"]} <= {
        "red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"
    }  # fmt: skip


def test_the_lock_is_of_this_pyproject_and_names_pypi_and_nothing_else(name: str):
    folder = spaces.ENVS / name
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    locked = tomllib.loads((folder / "uv.lock").read_text())["package"]
    own = next(package for package in locked if package["name"] == project["name"])
    asked = {re.split(r"[\[><=]", each)[0].lower().replace("_", "-"): each for each in project["dependencies"]}
    assert {each["name"] for each in own["metadata"]["requires-dist"]} == asked.keys(), f"make spaces ENV={name}"
    for package in locked:
        if package is not own:
            assert package["source"] == {"registry": "https://pypi.org/simple"}
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            assert all(file["url"].startswith("https://files.pythonhosted.org/") for file in files)


def test_the_server_imports_nothing_of_this_project(name: str):
    server = spaces.ENVS / name / "server"
    assert "apprentice" not in spaces.imported(server)
    assert not any("from .." in file.read_text() for file in server.rglob("*.py"))


def test_the_folder_alone_serves_as_openenv_demands_and_its_typed_client_plays(name: str, tmp_path: Path):
    folder, task = copied(name, tmp_path), a_task(name)
    with serving(folder, MAX_CONCURRENT_ENVS="3") as url:
        assert validate_running_environment(url, timeout_s=60)["passed"]
        assert play(task, url, seed=11).reward == 1.0
        command = [sys.executable, "-P", "-c", TYPED, name, url, json.dumps(question_of(task))]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spaces.app_of(folder).observation, "False", "0"]


def question_of(task: EnvironmentSpec) -> dict[str, Any]:
    """What the environment sends at a reset."""
    sent: list[dict[str, Any]] = []

    class Deaf(Session):
        def reset(self, **question: Any) -> Reply:
            sent.append(question)
            raise SessionLost

    with pytest.raises(SessionLost):
        task.make(Deaf(EnvironmentServer())).reset(seed=3)
    return sent[0]


def test_openenv_publishes_it_and_what_lies_in_the_space_can_be_played(name: str, hub: LocalHub, tmp_path: Path):
    folder = spaces.ENVS / name
    assert validate_env_structure(folder) == ["Recommended directory missing: outputs/"]
    done = CliRunner().invoke(openenv, ["push", str(folder), "--repo-id", f"team/{name}"])
    assert done.exit_code == 0, done.output
    api = HfApi(endpoint=hub.url)
    info = api.space_info(f"team/{name}")
    assert info.sdk == "docker"
    files = {sibling.rfilename for sibling in info.siblings or []}
    assert {"Dockerfile", "README.md", "openenv.yaml", "pyproject.toml", "uv.lock", "server/app.py"} <= files
    assert not any("__pycache__" in file for file in files)
    capacity = api.get_space_variables(f"team/{name}")["MAX_CONCURRENT_ENVS"].value
    assert capacity == spaces.app_of(folder).capacity
    space = Path(api.snapshot_download(f"team/{name}", repo_type="space", local_dir=tmp_path / "space" / name))
    docker = dict(re.findall(r"(\w+)=(\S+)", (space / "Dockerfile").read_text()))
    assert docker["ENABLE_WEB_INTERFACE"] == "true"
    with serving(space, ENABLE_WEB_INTERFACE="true", MAX_CONCURRENT_ENVS=str(capacity)) as url:
        assert play(a_task(name), url, seed=12).reward == 1.0
