"""A finished run as an object: tables, datasets and models out of its folder and its store."""

import json
from pathlib import Path

import pytest

from apprentice import Run
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import Ran


@pytest.fixture
def run(toy_run: Ran, toy_home: Path) -> Run:
    return Run(toy_run.folder, LocalStore(toy_home / "artifacts", "toy"))


def test_each_name_leads_to_what_the_run_made(run: Run):
    trained = {row["revision"] for row in run.report["lineage"]}
    for name, model in run.models.items():
        assert model.artifact.revision in trained
        assert model.artifact.stage == name
        assert run.evaluations[name].inputs["checkpoint"].key == model.key
    assert run.rollouts is not None
    assert run.kept is not None
    assert len(run.rollouts.to_pandas()) == 60
    assert run.dataset().num_rows == run.report["collect"]["kept"]
    assert run.model().num_parameters() == run.models["grpo"].artifact.parameters
    assert run.model(attn_implementation="eager").config._attn_implementation == "eager"


def test_a_run_without_sft_has_no_rows_to_learn_from(run: Run, tmp_path: Path):
    left = run.report | {"artifacts": run.report["artifacts"] | {"rollouts": None, "kept": None}}
    (tmp_path / "report.json").write_text(json.dumps(left))
    without = Run(tmp_path, run.models.last.store)
    assert (without.rollouts, without.kept) == (None, None)
    assert [*without.models] == [*run.models]
    with pytest.raises(Stop, match="This run trained without SFT"):
        without.dataset()


def test_its_models_are_a_table_of_shares_with_the_bounds_of_their_intervals(run: Run):
    assert [*run.to_pandas().index] == ["base", "sft", "grpo"]
    for name, rates in run.report["models"].items():
        row = dict(run.to_pandas().loc[name])
        assert row.pop("n") == rates["n"]
        bounds = {rate: [row[rate], [row[f"{rate}_low"], row[f"{rate}_high"]]] for rate in rates["ci"]}
        assert bounds == {rate: [rates[rate], ci] for rate, ci in rates["ci"].items()}
        assert len(row) == 3 * len(bounds)
    assert repr(run).startswith(f"<Run {run.folder.name}: base ")
