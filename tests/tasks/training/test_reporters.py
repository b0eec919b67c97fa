"""Curves go to whom the recipe names; what that lacks is said before anything is bought."""

import os
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import SftSpec
from apprentice.tasks.training import reporters
from apprentice.tasks.training.reporters import check_reporters, report_to
from apprentice.tasks.training.trainer import arguments

TOY = Path(__file__).parents[3] / "deployments" / "recipes" / "toy.yaml"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "x")  # so that what is set here is taken back
        monkeypatch.delenv(name)


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name, to which nobody has logged in."""
    (tmp_path / "wandb.py").write_text("class api:\n    api_key = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_trackio_is_the_default_and_who_is_told_changes_nothing_of_what_is_made():
    toy: Any = load_recipe(TOY, [])
    others: Any = load_recipe(TOY, ["report_to=[trackio, wandb, mlflow]"])
    assert toy.report_to == ["trackio"]
    assert toy.for_record() == others.for_record()
    assert toy.sft.in_key() == others.sft.in_key()
    with pytest.raises(Stop, match=r"report_to\.0: Input should be 'trackio', 'wandb' or 'mlflow'"):
        load_recipe(TOY, ["report_to=[tensorboard]"])


def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    with pytest.raises(Stop, match=r"mlflow, which is not installed") as stop:
        check_reporters(["mlflow"])
    assert "pip install 'openenv-apprentice[mlflow]'" in str(stop.value)


@pytest.mark.usefixtures("wandb")
def test_a_key_that_would_be_asked_for_in_mid_run_is_asked_for_before(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Stop, match="there is no key for it"):
        check_reporters(["trackio", "wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_reporters(["trackio", "wandb"])


def test_the_trainer_is_told_who_and_every_project_bears_the_recipe_s_name(work: RunContext, tmp_path: Path):
    sent = RunContext(work.store, work.servers, report_to=["wandb", "mlflow"])
    context = StageContext(sent, "0123456789" * 2, tmp_path / "out", tmp_path / "scratch")
    told = arguments(context, SftSpec(), 3, "sft")
    assert told["report_to"] == ["wandb", "mlflow"]
    assert told["run_name"] == "sft toy seed 3 01234567"
    assert (os.environ["WANDB_PROJECT"], os.environ["MLFLOW_EXPERIMENT_NAME"]) == ("toy", "toy")
    assert report_to([], "toy") == ["none"]
