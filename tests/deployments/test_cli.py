"""What the commands for a Prefect server and for new files hand on, and what they print. Stand-ins do the work."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prefect.client import orchestration
from prefect.utilities import urls
from typer.testing import CliRunner, Result

from apprentice.deployments import deployment, new_environment, new_project, provisioning, spaces
from apprentice.deployments.cli import app
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.runtime import deployed_runs
from tests.flows.commands import TOY


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed_runs, "check_server", lambda: None)
    monkeypatch.setattr(orchestration, "get_client", lambda sync_client: nullcontext(f"client {sync_client}"))
    monkeypatch.setattr(urls, "url_for", lambda *_: "")


@pytest.mark.parametrize(
    ("given", "handed", "printed"),
    [
        ([], ("cpu", "", None, "UTC", None), ("retrain", "run --on cpu")),
        (
            ["--pool", "p", "--gpu", "a100", "--schedule", "0 3 * * 1", "--timezone", "Europe/Berlin", "--rounds", "2"],
            ("p", "a100", "0 3 * * 1", "Europe/Berlin", 2),
            ("improve", "improve --on p"),
        ),
    ],
)
def test_a_recipe_is_deployed_as_it_is_typed(given: list[str], handed: Any, printed: Any, monkeypatch: Any):
    made: list[Any] = []
    monkeypatch.setattr(deployment, "deploy", lambda *given: made.append(given) or "the-id")
    ended = typed("deploy", TOY, "--set", "seed=3", *given)
    assert made == [(load_recipe(TOY, ["seed=3"]), *handed)]
    flow, command = printed
    assert ended.stdout.startswith(f"deployment {flow}/toy\nthe-id\nRun it: apprentice {command} {TOY}, or in Prefect")
    monkeypatch.setattr(urls, "url_for", lambda *of: f"http://there/{of[0]}/{of[1]}")
    assert "http://there/deployment/the-id\n" in typed("deploy", TOY).stdout
    assert made[-1][0].seed == load_recipe(TOY, []).seed


@pytest.mark.parametrize(
    ("given", "handed"),
    [
        ([], ("process", None, 10.0, provisioning.FILES)),
        (
            ["--type", "kubernetes", "--notify", "slack-webhook/team", "--outage-minutes", "3", "--files", "there"],
            ("kubernetes", "slack-webhook/team", 3.0, Path("there")),
        ),
    ],
)
def test_a_server_is_set_up_as_it_is_typed(given: list[str], handed: Any, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    monkeypatch.setattr(provisioning, "set_up", lambda *given: made.append(given) or ["a line", "another"])
    assert typed("setup", *given).stdout == "a line\nanother\n"
    assert made == [("client True", *handed)]


@pytest.mark.parametrize(
    ("given", "handed", "printed"),
    [
        ([], (Path(), None, False), ["apprentice run recipe.yaml", "apprentice view recipe.yaml"]),
        (
            ["a folder", "--recipe", "toy", "--production"],
            (Path("a folder"), "toy", True),
            [
                "cd 'a folder'",
                "apprentice setup --files .",
                "prefect --no-prompt deploy --all",
                "prefect worker start --pool cpu",
                "apprentice run --on cpu recipe.yaml",
            ],
        ),
    ],
)
def test_a_new_project_is_written_and_ends_with_the_next_commands(
    given: list[str], handed: Any, printed: list[str], monkeypatch: pytest.MonkeyPatch
):
    made: list[Any] = []
    monkeypatch.setattr(new_project, "init", lambda *given: made.append(given) or ["one file", "another"])
    monkeypatch.setattr(new_project, "RECIPE", "recipe.yaml")
    ended = typed("init", *given)
    assert made == [handed]
    assert ended.stdout.splitlines() == ["one file", "another", "Go on with:", *(f"  {each}" for each in printed)]


@pytest.mark.parametrize(("folder", "here"), [(Path("mine"), "./mine"), (Path("/tmp/mine"), "/tmp/mine")])
def test_a_new_environment_is_written_and_named_so_that_a_command_takes_it(
    folder: Path, here: str, monkeypatch: pytest.MonkeyPatch
):
    made: list[Any] = []
    monkeypatch.setattr(new_environment, "init_environment", lambda *given: made.append(given) or folder)
    ended = typed("env", "init", "mine", "--out", "there")
    assert made == [("mine", Path("there"))]
    assert f"apprentice env check {here}\n" in ended.stdout
    assert f"python -m pytest {folder}\nRun it: apprentice run {folder}/recipe.yaml\n" in ended.stdout
    typed("env", "init", "mine")
    assert made[-1] == ("mine", Path())


@pytest.mark.parametrize(
    ("uv", "given", "built"),
    [("/bin/uv", ["echo", "--out", "there"], [("echo", Path("there"), "/bin/uv")]), (None, [], [])],
)
def test_spaces_are_built_by_name_or_all_and_without_uv_it_is_said(
    uv: str | None, given: list[str], built: list[Any], monkeypatch: pytest.MonkeyPatch
):
    made: list[Any] = []
    monkeypatch.setattr(spaces, "find_uv", lambda: uv)
    monkeypatch.setattr(spaces, "build", lambda *given: made.append(given) or f"built {given[0]}")
    ended = typed("env", "build", *given)
    assert made == (built or [(name, Path("build/spaces"), None) for name in spaces.served()])
    assert ended.stdout.splitlines()[-len(made) :] == [f"built {name}" for name, *_ in made]
    assert ("uv is not installed" in ended.stdout) == (uv is None)
    refused = typed("env", "build", "echo", "nothing-such")
    assert refused.exit_code == 1
    assert "built" not in refused.stdout
