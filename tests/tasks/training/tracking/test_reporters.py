"""Curves go to whom the recipe names; what that lacks is said before anything is bought."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.training.tracking import reporters
from apprentice.tasks.training.tracking.reporters import check_reporters, report_to
from apprentice.tasks.training.trainer import arguments, train

TOY = Path(__file__).parents[4] / "deployments" / "recipes" / "toy.yaml"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED", "WANDB_PROJECT", "WANDB_RUN_GROUP")
    shell += ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "MLFLOW_TAGS", "MLFLOW_TRACKING_URI")
    for name in (*shell, "DISABLE_MLFLOW_INTEGRATION"):
        monkeypatch.setenv(name, "x")  # so that what is set here is taken back
        monkeypatch.delenv(name)


WANDB = """
class api:
    api_key = None

class Error(Exception):
    pass

def login(verify, timeout):
    import os
    if os.environ.get("WANDB_API_KEY") != "right":
        raise Error("Failed to authenticate: 401")

run, runs = None, []

def init(**given):
    global run
    assert run is None, "one run was still open"
    run = Run(given)
    runs.append(run)
    return run

class Run:
    def __init__(self, given):
        self.given, self.steps = given, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        global run
        run = None
"""


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name, to which nobody has logged in."""
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("wandb", None)


class ToyTrainer:
    """A trainer that logs two steps to the run that is open, as transformers does, and to one of its own without."""

    def __init__(self, settings: dict[str, Any]):
        import torch

        self.args = SimpleNamespace(**settings)
        self.model = torch.nn.Linear(1, 1)

    def is_world_process_zero(self) -> bool:
        return True

    def add_callback(self, callback: Any) -> None:
        """Nothing calls it here."""

    pop_callback = remove_callback = add_callback

    def train(self, resume_from_checkpoint: str | None) -> None:
        import wandb  # type: ignore[import-not-found]

        run = wandb.run or wandb.init(name=self.args.run_name)
        run.steps += [1, 2]


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
    reported = arguments(context, SftSpec(), 3)
    assert reported["report_to"] == ["wandb", "mlflow"]
    assert reported["run_name"] == "sft toy seed 3 01234567"
    assert (os.environ["WANDB_PROJECT"], os.environ["MLFLOW_EXPERIMENT_NAME"]) == ("toy", "toy")
    assert report_to([], "toy") == ["none"]


@pytest.mark.usefixtures("wandb")
def test_every_training_of_a_process_has_a_run_of_its_own_in_the_group_of_its_recipe(
    work: RunContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def trained(recipe: str, key: str) -> Any:
        run = RunContext(work.store, work.servers, report_to=["wandb"], recipe={"name": recipe})
        context = StageContext(run, key * 20, tmp_path / "out", tmp_path / f"sft-{key}")
        train(context, "SFT steps", ToyTrainer(arguments(context, SftSpec(warmup_steps=0), 3)), 2)
        return sys.modules["wandb"].runs[-1]

    first, second, other = trained("a", "0"), trained("a", "1"), trained("b", "2")
    assert (first.steps, second.steps) == ([1, 2], [1, 2])
    assert (first.given["name"], first.given["id"]) == ("sft toy seed 3 00000000", "sft-0")
    assert first.given["group"] == second.given["group"] != other.given["group"]
    assert sys.modules["wandb"].run is None
    monkeypatch.setenv("WANDB_RUN_GROUP", "ours")
    assert trained("a", "3").given["group"] == "ours"


@pytest.mark.usefixtures("wandb")
@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ({"WANDB_API_KEY": "right"}, ""),
        ({"WANDB_MODE": "offline"}, ""),
        ({"WANDB_MODE": "dryrun"}, ""),
        ({"WANDB_MODE": "online"}, "there is no key for it"),
        ({"WANDB_API_KEY": "wrong"}, "does not let this machine in: Failed to authenticate: 401"),
        ({"WANDB_MODE": "disabled"}, "WANDB_MODE=disabled in the shell switches it off"),
        ({"WANDB_DISABLED": "true", "WANDB_API_KEY": "right"}, "WANDB_DISABLED=true in the shell switches it off"),
    ],
    ids=str,
)
def test_a_login_that_does_not_work_is_found_before_a_run(
    shell: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    if not says:
        check_reporters(["wandb"], "toy")
        return
    with pytest.raises(Stop, match=says) as stop:
        check_reporters(["wandb"], "toy")
    assert stop.value.remedy


MLFLOW = """
import os
requests = []

def set_experiment(name):
    requests.append((name, os.environ.get("MLFLOW_RUN_ID"), os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]))
    where = os.environ.get("MLFLOW_TRACKING_URI", "")
    if "9" in where:
        raise OSError(f"API request to {where}/api failed")
    if name == "deleted":
        raise RuntimeError("Cannot set a deleted experiment 'deleted' as the active experiment")
"""


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name."""
    (tmp_path / "mlflow.py").write_text(MLFLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mlflow", None)


@pytest.mark.usefixtures("mlflow")
@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ({}, ""),
        ({"MLFLOW_TAGS": '{"team": "ours"}'}, ""),
        ({"MLFLOW_RUN_ID": "another"}, ""),
        ({"MLFLOW_TRACKING_URI": "http://me:secret@127.0.0.1:9"}, r"http://\*\*\*@127.0.0.1:9.*/api failed"),
        ({"MLFLOW_EXPERIMENT_NAME": "deleted"}, "deleted experiment"),
        ({"MLFLOW_TAGS": "team=ours"}, "MLFLOW_TAGS in the shell is no JSON object"),
        ({"MLFLOW_TAGS": "[1]"}, "MLFLOW_TAGS in the shell is no JSON object"),
        ({"DISABLE_MLFLOW_INTEGRATION": "TRUE"}, "DISABLE_MLFLOW_INTEGRATION=TRUE in the shell switches it off"),
    ],
    ids=str,
)
def test_an_experiment_that_cannot_be_opened_is_found_before_a_run(
    shell: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, capfd
):
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    if says:
        with pytest.raises(Stop, match=says) as stop:
            check_reporters(["mlflow"], "toy")
        assert "secret" not in str(stop.value)
    else:
        check_reporters(["mlflow"], "toy")
        assert sys.modules["mlflow"].requests == [("toy", None, "1")]
        assert ("MLFLOW_RUN_ID is ignored" in capfd.readouterr().out) == ("MLFLOW_RUN_ID" in shell)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
