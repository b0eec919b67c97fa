"""Every path of a recipe knows the home folder, and is whole in a deployment, or the deployment is refused."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from apprentice.deployments import cli
from apprentice.deployments.steps import as_deployed, with_common_store
from apprentice.flows.recipe.elsewhere import overrides_elsewhere, paths_needed
from apprentice.flows.recipe.loading import class_in, load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.errors import Stop
from tests.envs.test_outside import NAME

WINDOWS = {"collect": {"size": 8}, "grpo": {"size": 8}, "evaluate": {"size": 8}}
OWN: dict[str, Any] = {"name": "own", "environment": {"name": "echo"}, "windows": WINDOWS, "evaluate": {"questions": 4}}
BUILT: dict[str, Any] = {"student": {"build": {}}, "teacher": {"scripted_error_rate": 0.0}}
ROWS = BUILT | {"collect": {"dataset": {"path": "rows.jsonl"}}}
REFUSAL = "a path that a worker would look for in a folder of its own"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is the home as well: a student, rows, a file of words."""
    folder = tmp_path / "here"
    (folder / "student").mkdir(parents=True)
    (folder / "words").mkdir()
    for file in ("rows.jsonl", "two.yaml", "words/list.txt"):
        (folder / file).write_text("{}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("APPRENTICE_STORE", raising=False)
    return folder


def at(recipe: Any, path: str) -> Any:
    for name in path.split("."):
        recipe = recipe[int(name) if isinstance(recipe, list) else name]
    return recipe


PATHS = [
    ("store.path", BUILT, "kept"),
    ("collect.dataset.path", ROWS, "rows.jsonl"),
    ("student.model", {"student": {"model": "student"}, "collect": {"students": 2}}, "student"),
    ("sft.accelerate_config", BUILT, "two.yaml"),
    ("grpo.accelerate_config", BUILT, "two.yaml"),
]


@pytest.mark.parametrize(("field", "given", "name"), PATHS, ids=[each[0] for each in PATHS])
@pytest.mark.parametrize("how", ["{name}", "./{name}", "~/{name}", "{here}/{name}", "../here/{name}"])
def test_a_path_of_a_recipe_is_found_from_the_home_folder_and_by_a_worker(
    field: str, given: dict[str, Any], name: str, how: str, here: Path
):
    text = how.format(name=name, here=here)
    recipe = load_recipe(OWN | given, [f"{field}={text}"])
    assert not str(at(recipe.model_dump(mode="json"), field)).startswith("~")
    path = at(as_deployed(recipe)["recipe"], field)
    assert os.path.isabs(path)
    assert os.path.normpath(path) == str(here / name)
    assert not (here / "~").exists()


def test_a_dataset_in_one_text_is_found_from_the_home_folder(here: Path):
    recipe = load_recipe(OWN | BUILT | {"collect": {"dataset": "~/rows.jsonl"}})
    assert recipe.collect.dataset is not None
    assert recipe.collect.dataset.path == str(here / "rows.jsonl")


@pytest.mark.parametrize("path", ["~/games", "./games", "games"])
def test_an_environment_is_found_from_the_home_folder_and_by_a_worker(path: str, here: Path):
    (here / "games").mkdir()
    module = f"games_{abs(hash(path))}"
    game = (Path(cli.__file__).parent / "environment/game.py.j2").read_text()
    game = game.replace("{{ name }}", module).replace("{{ title }}", NAME.title().replace("_", ""))
    (here / "games" / f"{module}.py").write_text(game)
    recipe = OWN | BUILT | {"environment": {"path": f"{path}/{module}.py"}}
    (here / "own.yaml").write_text(yaml.safe_dump(recipe))
    found = as_deployed(load_recipe("~/own.yaml"))["recipe"]["environment"]
    assert found["path"] == str(here / "games" / f"{module}.py")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (BUILT | {"store": {"path": "~nobody-there/a"}}, "store.path: .*no home folder of a user nobody-there"),
        (BUILT | {"store": {"path": "$HOME/a"}}, r"store.path: .*\$HOME is not replaced here"),
        (BUILT | {"collect": {"dataset": "$HOME/rows.jsonl"}}, r"collect.dataset.path: .*\$HOME is not"),
        ({"student": {"model": "${MODELS}/a"}}, r"student.model: .*\$\{MODELS\} is not replaced here"),
        (BUILT | {"environment": {"path": "~nobody-there/a"}}, "environment: .*no home folder of a user"),
    ],
)
def test_what_is_not_replaced_is_refused_by_the_name_of_its_field(given: dict[str, Any], said: str):
    with pytest.raises(Stop, match=said):
        load_recipe(OWN | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (BUILT | {"collect": {"dataset": "gone.jsonl"}}, r"There is no file or folder /.*/here/gone\.jsonl"),
        (BUILT | {"collect": {"dataset": "./gone.jsonl"}}, r"There is no file or folder /.*/here/gone\.jsonl"),
    ],
)
def test_a_path_that_no_worker_would_find_is_refused(given: dict[str, Any], said: str):
    with pytest.raises(Stop, match=said):
        as_deployed(load_recipe(OWN | given))


@pytest.mark.parametrize("template", ["./chat.jinja", "words/list.txt"])
def test_a_relative_path_among_the_arguments_of_trl_is_refused(template: str):
    recipe = load_recipe(OWN | BUILT)
    assert recipe.sft is not None
    sft = recipe.sft.model_copy(update={"args": {"chat_template_path": template}})
    with pytest.raises(Stop, match=f"sft.args.chat_template_path is '{template}', {REFUSAL}"):
        as_deployed(recipe.model_copy(update={"sft": sft}))


@pytest.mark.parametrize("words", ["words/list.txt", "./words", "~/words"])
def test_a_relative_path_among_the_settings_of_an_environment_is_refused(words: str, monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe(OWN | BUILT)
    spec = recipe.environment.model_copy(update={"settings": {"words": words}})
    with pytest.raises(Stop, match=rf"environment\.settings\.words is '{words}', {REFUSAL}"):
        as_deployed(recipe.model_copy(update={"environment": spec}))


class Listed(BaseModel):
    words: Path | None = None


def test_a_setting_whose_type_is_a_path_is_refused_whatever_is_there(monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe(OWN | BUILT)
    from apprentice.envs.echo.env import Environment

    monkeypatch.setattr(Environment, "Settings", Listed)
    for words, is_whole in (("list", False), ("/data/list", True)):
        spec = recipe.environment.model_copy(update={"settings": {"words": words}})
        there = recipe.model_copy(update={"environment": spec})
        if is_whole:
            assert as_deployed(there)["recipe"]["environment"]["settings"] == {"words": words}
        else:
            with pytest.raises(Stop, match=rf"environment\.settings\.words is 'list', {REFUSAL}"):
                as_deployed(there)


@pytest.mark.parametrize(
    ("variable", "store"), [("~/kept", "here/kept"), ("", "here/artifacts"), ("kept", "here/kept")]
)
def test_the_store_of_all_workers_is_found_from_the_home_folder(
    variable: str, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("APPRENTICE_STORE", variable)
    made = as_deployed(load_recipe(OWN | BUILT))
    assert made["recipe"]["store"]["path"] == str(tmp_path / store)
    assert made["runs"] == str(tmp_path / store / "runs")


@pytest.mark.parametrize(
    ("overrides", "sent"),
    [
        (["seed=1", "grpo.max_steps=3"], ["seed=1", "grpo.max_steps=3"]),
        (["store.path=kept"], ['store.path="{here}/kept"']),
        (["store.path=~/kept"], ['store.path="{here}/kept"']),
        (["collect.dataset.path=rows.jsonl"], ['collect.dataset.path="{here}/rows.jsonl"']),
        (["sft.accelerate_config=two.yaml"], ['sft.accelerate_config="{here}/two.yaml"']),
        (["store.path="], ["store.path="]),
    ],
)
def test_options_reach_a_worker_with_whole_paths(overrides: list[str], sent: list[str], here: Path):
    recipe = load_recipe(OWN | ROWS, overrides)
    written = overrides_elsewhere(recipe, overrides)
    assert written == [each.replace("{here}", str(here)) for each in sent]
    again = load_recipe(OWN | ROWS, written).as_parameters()
    assert at(again, "store.path") in ("artifacts", str(here / "kept"))


def test_a_dataset_that_an_option_names_in_one_text_reaches_a_worker_whole(here: Path):
    options = ["collect.dataset=rows.jsonl"]
    (written,) = overrides_elsewhere(load_recipe(OWN | ROWS, options), options)
    field, _, value = written.partition("=")
    assert (field, json.loads(value)["path"]) == ("collect.dataset", str(here / "rows.jsonl"))


@pytest.mark.parametrize(
    ("store", "hub", "said"),
    [
        ("/data/kept", None, ["Its workers read /data/kept: on another machine, these must be the same files."]),
        ("/data/kept", {"namespace": "owner"}, []),
        (
            "/tmp/kept",
            None,
            ["Its workers read /tmp/kept: on", "/tmp/kept is in a folder for temporary files, which no"],
        ),
    ],
)
def test_what_workers_of_another_machine_need_is_said(store: str, hub: Any, said: list[str]):
    recipe = with_common_store(load_recipe(OWN | BUILT | {"store": {"path": store, "hub": hub}}))
    lines = paths_needed(recipe)
    assert len(lines) == len(said)
    assert all(line.startswith(begins) for line, begins in zip(lines, said, strict=True))


def models(whole: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    if whole not in seen:
        seen.add(whole)
        yield whole
        for field in whole.model_fields.values():
            if (inner := class_in(field.annotation, BaseModel)) is not None:
                yield from models(inner, seen)


def test_every_field_that_is_a_path_is_one_that_knows_the_home_folder(here: Path):
    found = []
    for model in models(Recipe, set()):
        for name, field in model.model_fields.items():
            if "Path" in str(field.annotation):
                kind = TypeAdapter(Annotated[(field.annotation, *field.metadata, "")])  # type: ignore[valid-type]
                assert kind.validate_python("~/a") == here / "a", f"{model.__name__}.{name}: give it the type FilePath"
                found.append(name)
    assert {"path", "accelerate_config"} <= set(found)


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("~/out", "{here}/out"),
        ("--to=~/out", "--to={here}/out"),
        ("--set=store.path=~/out", "--set=store.path=~/out"),
        ("store.path=~/out", "store.path=~/out"),
        ("run", "run"),
        ("--to=out", "--to=out"),
    ],
)
def test_an_argument_that_is_a_path_is_found_from_the_home_folder(argument: str, becomes: str, here: Path):
    assert cli._with_home(argument) == becomes.replace("{here}", str(here))


def test_an_argument_in_the_home_of_nobody_is_refused():
    with pytest.raises(Stop, match="no home folder of a user nobody-there"):
        cli._with_home("--to=~nobody-there/out")
