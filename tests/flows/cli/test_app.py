"""Commands that need neither a server nor a training, as they are typed: what they print and how they end."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from apprentice.envs.defaults import DEBUG
from apprentice.flows.cli.app import app
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release
from apprentice.tasks.reporting import announce
from tests.flows.commands import BIN, TOY
from tests.flows.history import History


@pytest.fixture(autouse=True)
def words_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, too, are written to the standard output of the command."""
    monkeypatch.setattr(announce, "console", Console(width=200))


@pytest.fixture
def released(tmp_path: Path) -> Release:
    return History(LocalStore(tmp_path / "store", project="toy")).add(load_recipe(TOY, []), True)


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_a_lineage_is_a_tree_for_people_and_a_line_of_json_for_machines(released: Release, tmp_path: Path):
    given = ["lineage", released.revision, "--store", tmp_path / "store"]
    tree = typed(*given)
    assert tree.exit_code == 0, tree.stdout
    assert released.revision[:12] in tree.stdout
    assert "decision: " in tree.stdout
    machines = typed(*given, "--json")
    assert machines.stdout.count("\n") == 1
    assert released.revision in str(json.loads(machines.stdout))


def test_a_lineage_of_nothing_names_the_nearest_and_ends_with_an_error(released: Release, tmp_path: Path):
    refused = typed("lineage", "no-such-key", "--store", tmp_path / "store")
    assert refused.exit_code == 1
    assert "no-such-key" in refused.stdout


def test_a_recipe_that_does_not_use_the_hub_has_nothing_to_publish():
    refused = typed("publish", TOY)
    assert refused.exit_code == 1
    assert "does not use the Hub." in refused.stdout
    assert "--set store.hub.namespace=" in refused.stdout


@pytest.mark.parametrize("command", [["status"], ["run", TOY, "--on", "cpu"], ["improve", TOY, "--on", "cpu"]])
def test_what_needs_a_prefect_server_says_how_to_start_one(command: list[object], tmp_path: Path):
    """In a process of its own: the settings of this one may name a server that another test started."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    given = [str(BIN / "apprentice"), *map(str, command)]
    home = {"PREFECT_HOME": str(tmp_path)}
    refused = subprocess.run(given, cwd=tmp_path, env=own | home, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "No Prefect server is configured" in refused.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["run", TOY, "--set", "sft.epochs=-1"], "sft.epochs"),
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["champion", "show", TOY, "--set", "no-such=1"], "no-such"),
    ],
)
def test_a_mistake_in_a_recipe_ends_before_anything_is_started(given: list[object], words: str):
    refused = typed(*given)
    assert refused.exit_code == 1
    assert words in refused.stdout


@pytest.mark.parametrize("given", [["improve", TOY, "--rounds", "0"], ["status", "--hours", "-1"], ["evaluate", TOY]])
def test_an_option_out_of_its_range_is_a_wrong_use(given: list[object]):
    assert typed(*given).exit_code == 2


def test_debug_is_an_option_of_every_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DEBUG, "")
    typed("publish", TOY)
    assert not os.environ[DEBUG]
    typed("--debug", "publish", TOY)
    assert os.environ[DEBUG] == "1"
