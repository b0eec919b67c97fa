"""A finished run as an object: tables, datasets and models out of its folder and its store."""

from pathlib import Path
from typing import Any

import pytest

from apprentice import Run
from apprentice.tasks.artifacts.local import LocalStore
from tests.flows.commands import Ran


@pytest.fixture
def run(toy_run: Ran, toy_home: Path) -> Run:
    return Run(toy_run.folder, LocalStore(toy_home / "artifacts", "toy"))


def test_its_models_are_a_table_of_rates_with_intervals(run: Run):
    table: Any = run.to_pandas()
    assert list(table.index) == ["base", "sft", "grpo"]
    for rate in ("accuracy", "format_compliance", "mean_score"):
        assert (table[f"{rate}_low"] <= table[rate]).all()
        assert (table[rate] <= table[f"{rate}_high"]).all()
    assert "grpo " in repr(run)


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
