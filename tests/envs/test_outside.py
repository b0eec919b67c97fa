"""An environment that is a package of its own is found, played, learned and deployed like those of this project."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openenv.cli.__main__ import app as openenv
from typer.testing import CliRunner

from apprentice.deployments import spaces
from apprentice.deployments.cli import app
from apprentice.envs import catalog
from apprentice.envs.catalog import EnvironmentSpec, described, environment_class, policy_of
from apprentice.envs.source import digest_of
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
def made(tmp_path: Path) -> Path:
    """The folder that `env init` writes."""
    done = CliRunner().invoke(app, ["env", "init", NAME, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"pip install --editable {tmp_path / NAME}" in done.output.replace("\n", " ")
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
    assert environment_class(NAME).__module__ == f"{NAME}.env"
    assert described(NAME) == "Spell a word backwards."
    assert policy_of(NAME).call({}, [{"role": "user", "content": "abc"}], 0.0) == ("answer", {"text": "cba"})
    assert catalog.server_app(NAME, 1).openapi()["info"]
    assert load_recipe(installed / "recipe.yaml", []).environment.name == NAME


def test_what_is_edited_is_another_environment(installed: Path):
    before = EnvironmentSpec(name=NAME)
    assert (before.version, before.code) == ("1", digest_of(installed / NAME))
    for file in ("env.py", "policy.py", "server/game.py"):
        path = installed / NAME / file
        path.write_text(path.read_text() + "\n# another\n")
        digest_of.cache_clear()
        after = EnvironmentSpec(name=NAME)
        assert after.code != before.code
        before = after


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
        pytest.skip("needs uv (apprentice[dev]) and PyPI")
    done = CliRunner().invoke(openenv, ["validate", str(folder), *(AT_REST if SUCCESSOR else [])])
    assert done.exit_code == 0, done.output


@pytest.mark.long
def test_its_test_passes_and_its_recipe_runs_where_no_checkout_is(made: Path, tmp_path: Path):
    where = [str(made), str(unpacked(tmp_path))]
    own = {"PYTHONPATH": os.pathsep.join(where), "PREFECT_HOME": prefect_home(made), "COLUMNS": "200"}

    def said(*command: str) -> str:
        done = subprocess.run(command, cwd=made, env=os.environ | own, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "1 passed" in said(sys.executable, "-m", "pytest", "tests")
    out = said(str(BIN / "apprentice"), "run", "recipe.yaml")
    report = json.loads((Path(out.strip().splitlines()[-1]) / "report.json").read_text())
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    assert 45 <= report["collect"]["kept"] < 60 == report["collect"]["episodes"]
