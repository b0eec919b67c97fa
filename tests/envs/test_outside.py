"""An environment in a file of its own is found, played, learned and deployed like those of this project."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from openenv.cli.__main__ import app as openenv
from typer.testing import CliRunner

from apprentice.deployments import spaces
from apprentice.deployments.cli import app
from apprentice.envs import catalog
from apprentice.envs.catalog import EnvironmentSpec, described, environment_class, policy_of
from apprentice.envs.folders import FOLDERS
from apprentice.envs.serving.process import local_server
from apprentice.envs.source import digest_of
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Session
from apprentice.flows.recipe.loading import load_recipe
from tests.envs.test_deployable import AT_REST, SUCCESSOR
from tests.prefect_database import prefect_home
from tests.wheel import unpacked

BIN = Path(sys.executable).parent
NAME = "spelt_backwards"


def install(folder: Path, name: str, package: str) -> None:
    """What pip leaves in `folder` of a package that has the entry point."""
    info = folder / f"{package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[apprentice.environments]\n{name} = {package}\n")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `env init` writes."""
    monkeypatch.setenv(FOLDERS, "")
    done = CliRunner().invoke(app, ["env", "init", NAME, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"apprentice env check {tmp_path / NAME}" in done.output.replace("\n", " ")
    install(tmp_path / NAME, NAME, NAME)
    return tmp_path / NAME


@pytest.fixture
def installed(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(made)
    catalog.known.cache_clear()
    yield made
    catalog.known.cache_clear()
    for module in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[module]


def test_it_is_found_by_its_entry_point_with_its_class_its_script_and_its_server(installed: Path):
    assert environment_class(NAME).__module__ == NAME
    assert described(NAME) == "Spell a word backwards."
    assert policy_of(NAME).call({}, [{"role": "user", "content": "abc"}], 0.0) == ("answer", {"text": "cba"})
    assert catalog.server_app(NAME, 1).openapi()["info"]
    assert load_recipe(installed / "recipe.yaml", []).environment.name == NAME


def test_what_is_edited_is_another_environment(installed: Path):
    before = EnvironmentSpec(name=NAME)
    assert (before.version, before.code) == ("1", digest_of(installed / f"{NAME}.py"))
    path = installed / f"{NAME}.py"
    path.write_text(path.read_text() + "\n# another\n")
    digest_of.cache_clear()
    assert EnvironmentSpec(name=NAME).code != before.code


@pytest.fixture
def by_path(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder, which nobody installed, and a recipe beside it that names its path."""
    monkeypatch.setenv(FOLDERS, "")
    catalog.known.cache_clear()
    recipe = yaml.safe_load((made / "recipe.yaml").read_text())
    recipe["environment"]["path"] = f"./{NAME}"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    yield made
    catalog.known.cache_clear()
    for module in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[module]


def test_a_recipe_names_its_folder_as_seen_from_the_recipe_and_leaves_sys_path_alone(by_path: Path, tmp_path: Path):
    before = list(sys.path)
    spec = load_recipe(tmp_path / "mine.yaml", []).environment
    assert (spec.name, spec.path, spec.code) == (NAME, by_path / f"{NAME}.py", digest_of(by_path / f"{NAME}.py"))
    assert sys.path == before
    assert os.environ[FOLDERS] == str(by_path / f"{NAME}.py"), "for the servers, which are processes of their own"
    assert policy_of(NAME).call({}, [{"role": "user", "content": "abc"}], 0.0) == ("answer", {"text": "cba"})
    assert load_recipe(tmp_path / "mine.yaml", [f"environment.path={by_path / NAME}.py"]).environment == spec


def test_where_the_folder_is_enters_no_key_and_no_record_but_is_told_to_other_processes(by_path: Path, tmp_path: Path):
    recipe = load_recipe(tmp_path / "mine.yaml", [])
    named = EnvironmentSpec(name=NAME, settings={"letters": 3})
    assert named.path is None
    assert recipe.environment.in_key() == named.in_key() == named.model_dump(mode="json")
    assert str(by_path) not in json.dumps(recipe.for_record())
    assert recipe.as_parameters()["environment"]["path"] == str(by_path / f"{NAME}.py")
    assert EnvironmentSpec.model_validate(recipe.environment.model_dump(mode="json")) == recipe.environment


def test_a_server_of_its_own_process_plays_what_only_a_path_names(by_path: Path, tmp_path: Path):
    spec = load_recipe(tmp_path / "mine.yaml", []).environment
    with local_server("apprentice.envs.serving.serve", NAME) as url:
        environment = spec.make(Session(EnvironmentServer(url=url)))
        assert len(environment.ask(1)) == 3
        environment.close()


@pytest.mark.parametrize(
    ("folder", "given", "words"),
    [
        ("empty", {}, r"is no environment: neither it nor empty/ in it has __init__\.py and env\.py"),
        ("echo", {}, r"there is an environment 'echo' already, apprentice\.envs\.echo: rename"),
        ("yaml", {}, r"is that of another package, .*yaml.__init__\.py: rename it"),
        ("my-env", {}, r"'my-env' cannot be a package's name"),
        (NAME, {"name": "echo"}, rf"has the environment '{NAME}', not 'echo'"),
    ],
)
def test_a_folder_that_cannot_be_one_is_refused(
    by_path: Path, tmp_path: Path, folder: str, given: dict[str, str], words: str
):
    if not (tmp_path / folder).exists():
        (tmp_path / folder).mkdir()
        for file in ("__init__.py", "env.py") if folder != "empty" else ():
            (tmp_path / folder / file).touch()
    with pytest.raises(ValueError, match=words):
        EnvironmentSpec.model_validate({"path": tmp_path / folder} | given)
    assert str(tmp_path / "echo") not in os.environ[FOLDERS]
    assert EnvironmentSpec(name="echo").name == "echo", "the others are found as before"


def test_what_is_not_installed_is_unknown_and_two_of_a_name_are_refused(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    catalog.known.cache_clear()
    with pytest.raises(ValueError, match=f"unknown environment '{NAME}'"):
        environment_class(NAME)
    install(tmp_path, "echo", "other_echo")
    monkeypatch.syspath_prepend(tmp_path)
    catalog.known.cache_clear()
    with pytest.raises(ValueError, match=r"'echo': apprentice.envs.echo and other_echo; uninstall one"):
        environment_class("echo")
    monkeypatch.undo()
    catalog.known.cache_clear()
    assert environment_class("echo")


@pytest.mark.parametrize(
    ("name", "words"),
    [("My-Env", "cannot be an environment's name"), ("class", "cannot be"), ("echo", "There is an environment")],
)
def test_a_name_that_cannot_be_one_is_refused(name: str, words: str, tmp_path: Path):
    done = CliRunner().invoke(app, ["env", "init", name, "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())
    assert not any(tmp_path.iterdir())


def test_files_that_are_there_are_left_alone(made: Path):
    (made / "recipe.yaml").write_text("mine")
    done = CliRunner().invoke(app, ["env", "init", NAME, "--out", str(made.parent)])
    assert done.exit_code == 1
    assert "holds files" in done.output
    assert (made / "recipe.yaml").read_text() == "mine"


@pytest.mark.long
def test_openenv_validates_what_is_built_of_it(installed: Path, tmp_path: Path):
    uv = spaces.find_uv()
    folder = spaces.build(NAME, tmp_path / "spaces", uv)
    if not (folder / "uv.lock").exists():
        pytest.skip("needs uv (openenv-apprentice[dev]) and PyPI")
    done = CliRunner().invoke(openenv, ["validate", str(folder), *(AT_REST if SUCCESSOR else [])])
    assert done.exit_code == 0, done.output


@pytest.mark.long
def test_its_test_passes_and_its_recipe_runs_where_no_checkout_is(made: Path, tmp_path: Path):
    package = str(unpacked(tmp_path))
    own = {"PREFECT_HOME": prefect_home(made), "COLUMNS": "200"}

    def said(*command: str, path: str) -> str:
        environment = os.environ | own | {"PYTHONPATH": path}
        done = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "1 passed" in said(sys.executable, "-m", "pytest", path=package)
    as_installed = os.pathsep.join([str(made), package])
    named = yaml.safe_load((made / "recipe.yaml").read_text())
    named["environment"] = {"name": NAME, "settings": named["environment"]["settings"]}
    (made / "named.yaml").write_text(yaml.safe_dump(named))
    out = said(str(BIN / "apprentice"), "run", "named.yaml", path=as_installed)
    report = json.loads((made / out.strip().splitlines()[-1] / "report.json").read_text())
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    assert 45 <= report["collect"]["kept"] < 60 == report["collect"]["episodes"]

    again = said(str(BIN / "apprentice"), "run", "recipe.yaml", path=package)
    assert f"This runs the Python code in {made / NAME}" in again.replace("\n", " ")
    report = json.loads((made / again.strip().splitlines()[-1] / "report.json").read_text())
    assert {stage["state"] for stage in report["stages"]} == {"cached"}, "where it was found is no part of a key"
    (made / f"{NAME}.py").write_text((made / f"{NAME}.py").read_text() + "\n# another\n")
    edited = said(str(BIN / "apprentice"), "run", "recipe.yaml", path=package)
    report = json.loads((made / edited.strip().splitlines()[-1] / "report.json").read_text())
    assert "ran" in {stage["state"] for stage in report["stages"] if stage["name"] == "collect"}


@pytest.mark.parametrize("command", ["check", "play", "build"])
def test_a_folder_is_an_environment_for_every_command(by_path: Path, command: str, tmp_path: Path):
    given = ["env", command, str(by_path)]
    if command == "play":
        given += ["--seed", "3"]
    if command == "build":
        given += ["--out", str(tmp_path / "spaces")]
    done = CliRunner().invoke(app, given, input="")
    assert done.exit_code == 0, done.output
    expected = {"check": f"works for {NAME}", "play": "The episode was abandoned.", "build": str(tmp_path / "spaces")}
    assert expected[command] in done.output.replace("\n", " ")


def test_a_folder_that_is_not_there_is_no_environment_and_the_remedy_is_for_another_machine(tmp_path: Path):
    done = CliRunner().invoke(app, ["env", "play", str(tmp_path / "gone")])
    assert done.exit_code == 1
    assert "install the environment there" in done.output.replace("\n", " ")
