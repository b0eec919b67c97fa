"""`apprentice init` writes what a project outside a checkout needs, and the package alone runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from typer.testing import CliRunner

from apprentice.deployments import steps
from apprentice.deployments.cli import app
from apprentice.deployments.new_project import FILES
from apprentice.deployments.provisioning import set_up
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.location import packaged
from apprentice.tasks.reporting.errors import Stop
from tests.prefect_database import prefect_home
from tests.wheel import files_of_the_checkout, unpacked

BIN = Path(sys.executable).parent
PAGES = ("envs/AUDIT.md", "deployments/SCALING.md", "deployments/figures.json")
BESIDE = (*PAGES, "deployments/docker/", "deployments/kubernetes/")
"""What only a checkout has: pages with their figures, and what builds images and sets up a cluster."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["init", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("name", packaged())
def test_a_copy_says_what_the_packages_recipe_says_under_the_folders_name(name: str):
    init("my_task", "--recipe", name)
    ours, package_recipe = (
        yaml.safe_load(path.read_text()) for path in (Path("my_task/recipe.yaml"), FILES / f"recipes/{name}.yaml")
    )
    assert ours == package_recipe | {"name": "my-task"}


def test_every_field_of_a_copy_is_explained_on_lines_that_can_be_read():
    init()
    text = Path("recipe.yaml").read_text()
    assert "    # Number of layers.\n    layers: 2\n" in text
    assert "  # Optimizer steps.\n  max_steps: 200\n" in text
    assert max(map(len, text.splitlines())) <= 120
    fields = [line for line in text.splitlines() if re.match(r" {2}\w+:", line)]
    before = {line: above for above, line in zip(text.splitlines(), text.splitlines()[1:], strict=False)}
    bare = [line for line in fields if not before[line].lstrip().startswith("#")]
    assert all("size" in line for line in bare), bare  # windows, each one range of seeds


def test_it_ends_with_the_commands_that_go_on_and_they_name_what_was_written():
    said = init("my task")
    assert said.splitlines()[-3:] == ["  cd 'my task'", "  apprentice run recipe.yaml", "  apprentice view recipe.yaml"]
    assert "cd" not in init("other/..").split("Go on with:")[1]


@pytest.mark.parametrize("there", ["recipe.yaml", "prefect.yaml", "pools/cpu.json"])
def test_nothing_is_overwritten_and_nothing_else_written(there: str, elsewhere: Path):
    (elsewhere / there).parent.mkdir(exist_ok=True)
    (elsewhere / there).write_text("mine")
    assert f"has {there} already" in init("--production", "--recipe", "toy", code=1)
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == [elsewhere / there]
    assert (elsewhere / there).read_text() == "mine"


def test_production_is_added_to_a_recipe_that_is_there():
    init("--recipe", "toy")
    Path("recipe.yaml").write_text(Path("recipe.yaml").read_text() + "seed: 3\n")
    init("--production")
    assert steps.recipe("recipe.yaml")["recipe"]["seed"] == 3
    name = load_recipe(Path("recipe.yaml"), []).name
    assert yaml.safe_load(Path("prefect.yaml").read_text())["deployments"][0]["name"] == name


def test_a_recipe_that_the_package_lacks_is_answered_with_those_it_has(elsewhere: Path):
    assert "Did you mean laptop? By name: " in init("--recipe", "labtop", code=1)
    (elsewhere / "mine.yaml").write_text("name: mine")
    assert "mine is not one of the package's recipes" in init("here", "--recipe", "mine", code=1)
    assert not (elsewhere / "here").exists()


def test_the_index_deploys_the_new_recipe_and_what_is_no_recipe_and_none_of_the_packages_recipes(monkeypatch):
    init("spelling", "--production")
    monkeypatch.chdir("spelling")
    ours, package_index = (yaml.safe_load(path.read_text()) for path in (Path("prefect.yaml"), FILES / "prefect.yaml"))
    assert ours["pools"] == package_index["pools"]
    assert "deployments/" not in Path("prefect.yaml").read_text()
    index: dict[str, Any] = {each["entrypoint"].rpartition(".")[2]: each for each in ours["deployments"]}
    laptop = next(each for each in package_index["deployments"] if each["name"] == "laptop")
    assert index.pop("retrain") == laptop | {
        "name": "spelling",
        "tags": ["apprentice", "retrain", "spelling"],
        "build": [{"apprentice.deployments.steps.recipe": {"id": "given", "recipe": "recipe.yaml"}}],
    }
    assert list(index.values()) == [each for each in package_index["deployments"] if not each.get("build")]
    assert steps.recipe("recipe.yaml")["recipe"]["name"] == "spelling"
    for pool in ours["pools"]:
        assert Path(f"pools/{pool}.json").read_text() == (FILES / f"pools/{pool}.json").read_text()


@pytest.mark.usefixtures("prefect_server")
def test_setup_takes_the_folders_pools_and_what_it_lacks_from_the_package(elsewhere: Path):
    init("--production")
    index = yaml.safe_load(Path("prefect.yaml").read_text())
    index["pools"] = {"spare": {"concurrency_limit": 2}}
    Path("prefect.yaml").write_text(yaml.safe_dump(index))
    with get_client(sync_client=True) as client:
        with pytest.raises(Stop, match=r"spare has no template .*spare\.json"):
            list(set_up(client, "process", None, 10.0, elsewhere))
        own = json.loads(Path("pools/cpu.json").read_text())
        own["variables"]["properties"]["env"]["default"]["MINE"] = "1"
        Path("pools/spare.json").write_text(json.dumps(own))
        assert "pool spare: created" in list(set_up(client, "process", None, 10.0, elsewhere))
        made = client.read_work_pool("spare")
        assert made.base_job_template["variables"]["properties"]["env"]["default"]["MINE"] == "1"
        assert made.concurrency_limit == 2
        with pytest.raises(Stop, match="lists no pools"):
            list(set_up(client, "process", None, 10.0, elsewhere / "pools"))


@pytest.mark.long
@pytest.mark.usefixtures("prefect_server")
def test_the_package_alone_has_every_file_runs_a_recipe_by_name_and_deploys_a_new_project(elsewhere: Path):
    installed = unpacked(elsewhere)
    rooms = ("envs/", "tasks/", "flows/", "deployments/")
    wanted = [each for each in files_of_the_checkout() if each.startswith(rooms) and not each.startswith(BESIDE)]
    assert not [file for file in wanted if not (installed / "apprentice" / file).is_file()]

    (elsewhere / "here").mkdir()
    own = {
        "PYTHONPATH": str(installed),
        "PREFECT_HOME": prefect_home(elsewhere),
        "COLUMNS": "200",
        "HF_HUB_OFFLINE": "1",
    }

    def said(*command: str, folder: Path = elsewhere / "here", **variables: str) -> str:
        environment = os.environ | own | variables
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import apprentice.deployments.cli as c; print(c.__file__)"
    assert said(sys.executable, "-c", where).strip() == str(installed / "apprentice/deployments/cli.py")
    out = said(str(BIN / "apprentice"), "run", "toy")
    report = json.loads((elsewhere / "here" / out.strip().splitlines()[-1] / "report.json").read_text())
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    assert {path.name for path in (elsewhere / "here").iterdir()} == {"artifacts", "runs"}

    said(str(BIN / "apprentice"), "init", "spelling", "--recipe", "toy", "--production")
    project = elsewhere / "here" / "spelling"
    server = {"PREFECT_API_URL": PREFECT_API_URL.value()}
    said(str(BIN / "apprentice"), "setup", "--files", ".", folder=project, **server)
    said(str(BIN / "prefect"), "--no-prompt", "deploy", "--all", folder=project, **server)
    with get_client(sync_client=True) as client:
        deployed = client.read_deployment_by_name("retrain/spelling")
    assert deployed.work_pool_name == "cpu"
    assert deployed.parameters["recipe"]["store"]["path"] == str(project / "artifacts")
    assert load_recipe(project / "recipe.yaml", []).name == "spelling"
