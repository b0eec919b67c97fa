"""What the report says GRPO played, also where steps asked further questions; and a model's exported files."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.report import _effort, _exported
from apprentice.flows.run_artifacts import TrainedModel
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Exported, SftCheckpoint
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.grpo_training import GRPO
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.serving.exported import CONTENTS, ExportContents
from tests.tasks.evaluations import published

LAPTOP = Path(__file__).parent.parent.parent / "deployments" / "recipes" / "laptop.yaml"


def trained(folder: Path, log: list[dict[str, Any]]) -> TrainedModel:
    folder.mkdir()
    (folder / "log.json").write_text(json.dumps(log))
    return TrainedModel(GRPO, folder)


@pytest.mark.parametrize(("question_counts", "rollouts"), [((None, None), 1024), ((32, 64), 1536)])
def test_the_rollouts_are_those_that_were_played_and_not_only_those_learned_from(
    tmp_path: Path, question_counts, rollouts
):
    work = RunContext(LocalStore(tmp_path, "toy"), StandingServers({}, None))
    recipe = load_recipe(LAPTOP, ["grpo.max_steps=4", "grpo.logging_steps=2"])
    log: list[dict[str, Any]] = [{"step": step, "completions/mean_length": 10.0} for step in (2, 4)]
    log = [
        entry | ({"refill/questions": each} if each else {}) for entry, each in zip(log, question_counts, strict=True)
    ]
    effort = _effort(work.log, trained(tmp_path / "model", log), {"grpo": recipe.grpo})
    assert effort["rollouts"] == rollouts
    assert effort["tokens"] == 10 * rollouts


def test_the_seconds_are_those_of_the_trainings_that_this_run_made(tmp_path: Path):
    work = RunContext(LocalStore(tmp_path, "toy"), StandingServers({}, None))
    work.log += [
        StageRun("collect", "ran", 0.5, "key", "collect"),
        StageRun("sft", "ran", 1.5, "key", "SFT"),
        StageRun("grpo", "cached", 2.5, "key", "GRPO"),
        StageRun("grpo", "ran", 3.5, "key", "GRPO again"),
    ]
    effort = _effort(work.log, None, {"sft": None, "grpo": None})
    assert effort == {"seconds": {"SFT": 1.5, "GRPO again": 3.5}, "rollouts": 0, "tokens": 0}


def test_the_newest_files_are_those_of_this_model(tmp_path: Path):
    work = RunContext(LocalStore(tmp_path, "toy"), StandingServers({}, None))
    one, other = (
        published(work.store, SftCheckpoint, key * 20, {"model.txt": key}, {"parameters": 1, "stage": "sft"})
        for key in "ab"
    )
    contents = ExportContents(
        llama_cpp="version: 1",
        context=512,
        slots=4,
        margin=0.02,
        files=[],
        checkpoint_bytes=4_000_000,
        checkpoint_right=0.8,
        questions=10,
    )
    files, counts = {CONTENTS: contents.model_dump_json()}, {"forms": [], "worse": []}
    published(work.store, Exported, "c" * 20, files, counts, {"checkpoint": one})
    assert [row["form"] for row in _exported(work, one)] == ["checkpoint"]
    assert _exported(work, other) == []
