"""Where an environment runs: at a URL, in an image's container, as a child process; stopped with the run."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.env import Environment
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, check_runs, run_folder
from apprentice.tasks.reporting.errors import Stop
from tests import docker_stand_in

TOY = Path(__file__).parents[3] / "deployments" / "recipes" / "toy.yaml"
ECHO = ["environment={name: echo}"]


class Docker:
    """The stand-in on PATH, and what it was asked."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def commands(self) -> list[str]:
        return (self.folder / "commands.txt").read_text().splitlines()

    @property
    def containers(self) -> list[Path]:
        """What was not removed."""
        return list(self.folder.glob("*.json"))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {docker_stand_in.__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_STAND_IN", str(tmp_path))
    return Docker(tmp_path)


def recipe(**env: Any) -> Recipe:
    return load_recipe(TOY, [*ECHO, *(f"server.{name}={value}" for name, value in env.items())])


def reward_at(server: EnvironmentServer) -> float | None:
    """Of one episode, played well."""
    player = EnvironmentSpec(name="echo").make(Session(server))
    try:
        player.act("echo", {"message": player.ask(1)})
        return player.reward
    finally:
        player.close()


def answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_an_environment_is_played_in_a_child_process_that_ends_with_the_run():
    with RunServers(recipe(local="true")) as servers:
        server = servers.environment("echo")
        assert not server.shared
        assert reward_at(server) == 1.0
        assert servers.environment("echo").url == server.url
    assert not answers(server.url)


def test_an_environment_is_played_in_the_container_of_an_image_that_ends_with_the_run(docker: Docker):
    with RunServers(recipe(image="echo:latest", sessions=7)) as servers:
        assert not docker.containers, "nothing has asked for it yet"
        server = servers.environment("echo")
        assert reward_at(server) == 1.0
        assert servers.environment("echo").url == server.url, "one container serves all stages"
    assert not docker.containers
    assert not answers(server.url)
    verbs = [command.split()[0] for command in docker.commands]
    assert [command for command in verbs if command != "inspect"] == ["ps", "run", "port", "rm"]


@pytest.mark.long
def test_a_container_is_reached_from_this_machine_alone_and_bounded(docker: Docker):
    with RunServers(recipe(image="echo:latest", sessions=7)) as servers:
        assert servers.environment("echo").url.startswith("http://127.0.0.1:")
    options = docker.commands[1]
    assert " --publish 127.0.0.1::8000 " in options
    assert " --user 1000:1000 --cap-drop ALL --security-opt no-new-privileges " in options
    assert " --memory 8g --memory-swap 8g --pids-limit 4096 " in options
    assert " --env MAX_CONCURRENT_ENVS=" in options


def test_the_next_run_removes_the_containers_of_dead_processes_and_no_others(docker: Docker):
    ended = subprocess.Popen(["true"])
    ended.wait()
    here, elsewhere = socket.gethostname(), "another-host"
    owners = {
        "dead": f"{here}:{ended.pid}",
        "alive": f"{here}:{os.getppid()}",
        "elsewhere": f"{elsewhere}:{ended.pid}",
        "unknown": "somebody",
    }
    for name, owner in owners.items():
        (docker.folder / f"{name}.json").write_text(json.dumps({"pid": ended.pid, "label": owner}))
    with RunServers(recipe(image="echo:latest")) as servers:
        servers.environment("echo")
        assert {file.stem for file in docker.containers} > {"alive", "elsewhere", "unknown"}
        assert not (docker.folder / "dead.json").exists()
    assert {file.stem for file in docker.containers} == {"alive", "elsewhere", "unknown"}


@pytest.mark.long
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_container_is_stopped_also_after_an_error_or_ctrl_c(docker: Docker, error: type[BaseException]):
    def interrupted() -> None:
        with RunServers(recipe(image="echo:latest")) as servers:
            servers.environment("echo")
            assert len(docker.containers) == 1
            raise error

    with pytest.raises(error):
        interrupted()
    assert not docker.containers


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("nowhere:1", r"the image nowhere:1 does not start: docker: pull access denied for nowhere:1"),
        ("broken", r"the server of broken exited at startup: no module named game"),
        ("deaf", r"the server of deaf did not answer for 1 s: it printed nothing"),
    ],
)
@pytest.mark.long
def test_an_image_that_does_not_serve_is_told_with_its_reason_and_leaves_nothing(docker: Docker, image: str, says: str):
    with RunServers(recipe(image=image, patience=1)) as servers:
        with pytest.raises(Stop, match=says):
            servers.environment("echo")
        assert not docker.containers


def test_an_image_where_docker_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("docker") is None
    with (
        RunServers(recipe(image="echo:latest")) as servers,
        pytest.raises(Stop, match=r"Docker does not answer here, and echo:latest needs it"),
    ):
        servers.environment("echo")


def test_a_server_that_runs_is_used_as_it_is():
    with RunServers(recipe(url="http://127.0.0.1:9")) as servers:
        assert servers.environment("echo") == EnvironmentServer(url="http://127.0.0.1:9")


def test_an_environment_whose_extra_is_missing_stops_before_anything_is_collected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Environment, "extra", ("textarena", "a_module_that_is_nowhere"))
    with (
        RunServers(recipe()) as servers,
        pytest.raises(Stop, match=r"a_module_that_is_nowhere.*pip install 'openenv-apprentice\[textarena\]'"),
    ):
        servers.environment("echo")
    with RunServers(recipe(url="http://127.0.0.1:9")) as servers:
        assert servers.environment("echo").url, "one that is elsewhere needs nothing here"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{url: 'http://there', image: there}", "url and image exclude each other"),
        ("{image: there, local: true}", "image and local exclude each other"),
        ("{url: 'http://there', image: there, local: true}", "url and image and local exclude each other"),
        ("{local: false}", "local: false needs a url or an image"),
        ("{url: there}", "should match pattern"),
        ("{image: '--privileged'}", "should match pattern"),
    ],
)
def test_a_server_is_in_one_place(section: str, says: str):
    with pytest.raises(Stop, match=says):
        load_recipe(TOY, [f"server={section}"])


@pytest.mark.parametrize("section", ["{}", "{local: true}", "{local: false, url: 'http://there'}", "{image: a/b:1}"])
def test_where_it_runs_survives_a_deployments_form_and_enters_no_record(section: str):
    chosen = load_recipe(TOY, [f"server={section}"])
    assert Recipe.model_validate(chosen.as_parameters()) == chosen
    assert chosen.for_record() == load_recipe(TOY, []).for_record()


def test_the_section_that_was_called_env_names_what_it_is_called_now():
    with pytest.raises(Stop, match=r"env: unknown field; did you mean server\?"):
        load_recipe(TOY, ["env.url=http://there"])


MIXED = "environment={name: multi, settings: {parts: {a: {name: echo}, b: {name: echo}, c: {name: catch}}}}"


def test_each_environment_of_a_mixture_has_one_server_and_a_url_is_used_as_it_is():
    there = "server.parts={catch: {url: 'http://127.0.0.1:9'}}"
    with RunServers(load_recipe(TOY, [MIXED, there, "teacher={}"])) as servers:
        server = servers.environment("multi")
        assert servers.environment("multi") == server
        assert server.parts["catch"].url == "http://127.0.0.1:9"
        assert reward_at(server.parts["echo"]) == 1.0
        assert list(server.parts) == ["catch", "echo"]


def test_a_process_that_holds_a_device_is_less_patient_with_every_server_of_a_mixture():
    there = "server.parts={catch: {url: 'http://127.0.0.1:9', grace: 8}, echo: {url: 'http://127.0.0.1:9'}}"
    with RunServers(load_recipe(TOY, [MIXED, there, "teacher={}"]), holds_device=True) as servers:
        parts = servers.environment("multi").parts
        assert [part.patience for part in parts.values()] == [2.0, 5.0]


def test_the_endpoint_of_a_model_that_is_named_is_asked_and_no_script_is_started():
    recipe = load_recipe(TOY, ["teacher.model=big", "teacher.base_url=http://127.0.0.1:9/v1"])
    with RunServers(recipe) as servers:
        assert servers.teacher() == "http://127.0.0.1:9/v1"


def test_a_run_s_folder_has_its_recipe_and_goes_where_the_run_fails(tmp_path: Path):
    recipe = load_recipe(TOY, [])
    with run_folder(tmp_path / "runs", recipe) as kept:
        assert kept.parent == tmp_path / "runs"
        assert kept.name.startswith("toy-seed0-")
    assert load_recipe(kept / "recipe.yaml", []) == recipe
    with pytest.raises(KeyboardInterrupt), run_folder(tmp_path / "runs", recipe) as failed:
        raise KeyboardInterrupt
    assert [*(tmp_path / "runs").iterdir()] == [kept] != [failed]


def test_where_no_folder_can_be_made_it_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_runs(tmp_path / "new" / "runs")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match="file is a file"):
        check_runs(tmp_path / "file" / "runs")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK)
    with pytest.raises(Stop, match="cannot be written"):
        check_runs(tmp_path / "runs")
