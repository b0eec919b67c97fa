"""Puts the rewards of rollouts under a scale: which reward counts as 0.0, and which as right.

In: `Rollouts` with the environment's own rewards, the environment with its `scale`. Out: `RescoredRollouts`:
rollouts.jsonl in the same order. A scale changes no question and no reply, so nothing is played again.
"""

from collections import Counter
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.openenv.discovered import DiscoveredEnvironment
from apprentice.envs.reward import is_right
from apprentice.tasks.artifacts.types import COUNTED, RescoredRollouts, Rollouts
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.reporting import announce


@stage(
    produces=RescoredRollouts,
    version=1,
    title="Rollouts under the scale of rewards",
    drawn=Drawn("Rescore", "episodes", "episodes"),
)
def scale_rollouts(context: StageContext, rollouts: Rollouts, environment: EnvironmentSpec) -> dict[str, Any]:
    """Rewrites the reward of every episode that has one."""
    played = environment.make().environment
    assert isinstance(played, DiscoveredEnvironment)  # no other environment has a scale
    totals: Counter[str] = Counter(dict.fromkeys(("episodes", "failed", "changed", *COUNTED), 0))
    right = 0
    with (
        (context.fetch(rollouts) / "rollouts.jsonl").open("rb") as lines,
        (context.out / "rollouts.jsonl").open("wb") as out,
    ):
        for before in map(Record.model_validate_json, lines):
            reward = before.reward if before.reward is None or before.failed_at else played.scaled(before.reward)
            out.write(before.model_copy(update={"reward": reward}).line())
            totals.update({name: getattr(before, name) for name in COUNTED})
            totals.update(episodes=1, failed=bool(before.failed_at), changed=reward != before.reward)
            right += is_right(reward)
    rows = [{"rollouts": "right", "count": right}, {"rollouts": "another reward", "count": totals["changed"]}]
    announce.table("scaled", f"Scaled the rewards of {totals['episodes']} episodes", rows)
    return dict(totals) | {"left_out": 0}
