"""A finished run as an object: tables, datasets and models out of its folder and its store."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice import Run
from apprentice.flows import results
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.reporting.errors import Stop
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


@pytest.mark.parametrize("with_sft", [True, False])
def test_a_run_is_read_from_its_report_whatever_it_left_out(with_sft: bool, tmp_path: Path, monkeypatch: Any):
    ci = {"accuracy": [0.1, 0.3], "format_compliance": [0.8, 1.0]}
    rates = {"n": 40, "accuracy": 0.2, "format_compliance": 0.9, "ci": ci}
    named = {"kind": "Questions", "repository": "local/toy", "revision": "r", "key": "k"}
    artifacts = {"models": {"base": named, "grpo": named}, "evaluations": {"grpo": named}}
    artifacts |= {"rollouts": named if with_sft else None, "kept": named if with_sft else None}
    (tmp_path / "report.json").write_text(
        json.dumps({"artifacts": artifacts, "models": {"base": rates, "grpo": rates}})
    )

    def result(_store: Any, artifact: Any) -> Any:
        return SimpleNamespace(of=artifact, model=lambda **how: how, dataset=lambda: "rows")

    monkeypatch.setattr(results, "node_of", lambda store, parent, known: SimpleNamespace(artifact=parent.key))
    monkeypatch.setattr(results, "as_result", result)
    run = Run(tmp_path, LocalStore(tmp_path, "toy"))
    assert (list(run.models), list(run.evaluations), run.folder) == (["base", "grpo"], ["grpo"], tmp_path)
    assert repr(run) == f"<Run {tmp_path.name}: base 20.0%, grpo 20.0%>"
    assert run.model(device_map="cpu") == {"device_map": "cpu"}
    table = run.to_pandas()
    assert list(table.columns) == ["n", *(f"{rate}{end}" for rate in ci for end in ("", "_low", "_high"))]
    assert list(table.loc["grpo"]) == [40, 0.2, 0.1, 0.3, 0.9, 0.8, 1.0]
    assert (run.rollouts is None, run.kept is None) == (not with_sft, not with_sft)
    if with_sft:
        assert run.dataset() == "rows"
        return
    with pytest.raises(Stop, match="This run trained without SFT"):
        run.dataset()
