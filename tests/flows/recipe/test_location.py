"""A recipe is named by its file or, from any folder, by the name of one that is installed with the package."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from apprentice.deployments.cli import app
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.location import RECIPES, find_recipe, packaged, recipe_file
from apprentice.tasks.reporting.errors import Stop


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", packaged())
def test_every_recipe_of_the_package_is_found_by_its_name(name: str):
    assert recipe_file(Path(name)) == RECIPES / f"{name}.yaml"


def test_a_file_where_one_stands_goes_before_the_packages():
    Path("laptop.yaml").write_text((RECIPES / "laptop.yaml").read_text().replace("name: laptop", "name: mine"))
    assert load_recipe(Path("laptop"), []).name == "mine"
    Path("toy").write_text((RECIPES / "toy.yaml").read_text().replace("name: toy", "name: own"))
    assert load_recipe(Path("toy"), []).name == "own"


def test_a_folder_of_that_name_is_no_recipe_and_hides_none(elsewhere: Path):
    (elsewhere / "laptop").mkdir()
    assert load_recipe(Path("laptop"), []).name == "laptop"
    (elsewhere / "mine").mkdir()
    with pytest.raises(Stop, match="mine is a folder"):
        load_recipe(Path("mine"), [])


@pytest.mark.parametrize("given", ["laptop.yaml", "./laptop.yaml", "recipes/laptop", "laptop.yml"])
def test_a_path_is_never_taken_for_a_name(given: str):
    assert find_recipe(Path(given)) is None
    with pytest.raises(Stop, match=r"(?s)There is no recipe at .*Did you mean laptop"):
        recipe_file(Path(given))


def test_a_name_that_is_none_is_answered_with_the_nearest_ones_and_all():
    with pytest.raises(Stop, match=r"(?s)no recipe labtop.*Did you mean laptop\? By name: browsergym, .*wordle-laptop"):
        recipe_file(Path("labtop"))


def test_the_files_beside_a_path_that_is_wrong_are_named(elsewhere: Path):
    (elsewhere / "spelling.yaml").touch()
    with pytest.raises(Stop, match=r"(?s)Did you mean spelling\.yaml\? Files in .*: spelling\.yaml\. By name: "):
        recipe_file(Path("speling.yaml"))


@pytest.mark.parametrize(
    "command",
    [
        *(["run", "toy"], ["rescore", "toy"], ["improve", "toy"], ["publish", "toy"], ["champion", "show", "toy"]),
        *(["evaluate", "toy", "--model", "champion"], ["dashboard", "toy"], ["view", "toy"]),
        ["env", "play", "echo", "--recipe", "toy"],
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_recipe_takes_its_name(command: list[str], monkeypatch: pytest.MonkeyPatch):
    """The recipe is read: a mistake in it is told, and what is asked for ends there."""
    Path("toy.yaml").write_text("nane: toy")
    done = CliRunner().invoke(app, command, env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "toy.yaml is not a valid recipe" in done.output
    assert "nane: unknown field; did you mean name?" in done.output
