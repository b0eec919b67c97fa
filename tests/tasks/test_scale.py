"""Rollouts get the rewards that a scale makes of the environment's own; what failed has none, and nothing is played."""

import json
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.types import COUNTED, Rollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.scale import scale_rollouts
from tests.tasks.evaluations import published

TOOL = {"name": "act", "description": "", "input_schema": {}}
COUNTS: dict[str, Any] = dict.fromkeys(("episodes", "failed", *COUNTED), 0)


@pytest.mark.parametrize(
    ("reward", "failed_at", "scaled"),
    [(0.1, "", 0.0), (0.8, "", 1.0), (0.45, "", 0.5), (1.5, "", 2.0), (-3.0, "", 0.0), (0.8, "environment", 0.8)],
)
def test_a_reward_is_scaled_and_a_failure_is_left(context: StageContext, reward: float, failed_at: str, scaled: float):
    record = Record(seed=3, environment="openenv 2", messages=[], tools="[]", reward=reward, failed_at=failed_at)
    spec = EnvironmentSpec(settings={"tools": [TOOL], "scale": [0.1, 0.8]})
    found = published(context.run.store, Rollouts, "r" * 20, {"rollouts.jsonl": record.line().decode()}, COUNTS)
    totals = scale_rollouts.body(context, found, spec)
    (row,) = read_rows(context.out / "rollouts.jsonl")
    assert row["reward"] == pytest.approx(scaled)
    assert json.loads(record.line()) | {"reward": row["reward"]} == row, "all else stays"
    assert (totals["episodes"], totals["changed"]) == (1, int(scaled != reward))
