"""`apprentice.retrain` is the run of the command: over the same artifacts, in a server's sight."""

import shutil
from pathlib import Path

import pytest

from apprentice import Run, load_recipe
from apprentice.flows import library
from tests.flows.commands import TOY, Ran


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("named", [True, False])
def test_a_training_by_call_is_that_of_the_command(
    named: bool, toy_run: Ran, toy_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(toy_home / "artifacts", tmp_path / "artifacts")
    shutil.rmtree(tmp_path / "artifacts" / ".prefect", ignore_errors=True)
    monkeypatch.chdir(tmp_path)
    if named:
        monkeypatch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / "mine"))
    else:
        monkeypatch.delenv("PREFECT_LOCAL_STORAGE_PATH", raising=False)
    made = library.retrain(load_recipe(TOY, ["gate.at_least=0.01"]))  # of the judgement alone
    assert isinstance(made, Run)
    assert made.folder.parent.resolve() == tmp_path / "runs"
    assert {each["name"] for each in made.report["stages"] if each["state"] == "ran"} == {"gate", "release", "verdict"}
    assert made.report["artifacts"] == toy_run.report["artifacts"]
    assert made.model().num_parameters() == made.models.last.artifact.parameters
    assert (tmp_path / "artifacts" / ".prefect").exists() is not named, "Prefect keeps its results where a person said"
