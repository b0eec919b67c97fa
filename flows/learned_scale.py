"""Learns from the teacher's episodes which reward counts as right, where neither recipe nor server say it.

In: an environment that is known by its server only, the teacher's rollouts. Out: the environment with its `scale`. The
rollouts are collected as they are, so nothing is bought twice; the episodes are scored again under the scale.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from apprentice.envs.catalog import EnvironmentSpec, environment_class
from apprentice.envs.openenv.discovered import DiscoveredEnvironment
from apprentice.envs.reward import ROUNDING
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.reporting import announce

OFTEN = 0.2
"""Share of the episodes that earn the highest reward, where it is the highest that can be had."""
WELL = 0.75
"""Where rewards are all different, the share of the teacher's episodes that a right one must at least equal."""
PROBABLY_RIGHT = 0.5
"""Where all episodes earn the same, the least of it that is taken for the highest reward."""


def has_unknown_scale(spec: EnvironmentSpec) -> bool:
    """Return whether nothing says which rewards of an environment are wrong and right."""
    is_known = {"scale", "reward_range"} & spec.settings.keys()
    return not is_known and issubclass(environment_class(spec.name), DiscoveredEnvironment)


def with_learned_scale(spec: EnvironmentSpec, rollouts: Path) -> EnvironmentSpec:
    """Return the environment under the scale that the rollouts of a folder show; as it is if they show none."""
    rows = read_rows(rollouts / "rollouts.jsonl")
    rewards = [row["reward"] for row in rows if row["reward"] is not None and not row["failed_at"]]
    if (scale := scale_of(rewards, spec.questions == 1)) is None:
        return spec
    low, high = scale
    if max(rewards) - min(rewards) <= ROUNDING:
        announce.warn(
            f"All {len(rewards)} episodes of the teacher earn {high:g}, so this counts as right, and nothing shows "
            f"what more would be. If more can be had, say how much: environment.scale: [{high:g}, …]."
        )
    else:
        reached = sum(reward >= high - ROUNDING for reward in rewards)
        announce.say(
            f"The teacher's rewards lie between {min(rewards):g} and {max(rewards):g}, so {high:g} and more counts "
            f"as right, as {reached} of {len(rewards)} episodes have it. To choose: environment.scale: "
            f"[{low:g}, {high:g}]."
        )
    return spec.with_settings(spec.settings | {"scale": [low, high]})


def scale_of(rewards: Sequence[float], is_one_task: bool = False) -> tuple[float, float] | None:
    """Return the rewards that count as 0.0 and 1.0; None where 1.0 is the highest already, or nothing can be learned.

    The highest reward counts as right if many episodes have it; else the rewards are sums, and the best quarter of the
    episodes is right. Of one task, the teacher may know one way only: what it earns counts as right, and training goes
    on from there.
    """
    if len(rewards) < 2:
        return None
    low, best = min(rewards), max(rewards)
    if abs(best - 1.0) <= ROUNDING and low >= 0:
        return None
    if best - low <= ROUNDING:
        if not is_one_task and best < PROBABLY_RIGHT:
            return None
        return (0.0 if best > 0 else best - 1.0, best)
    often = sum(reward >= best - ROUNDING for reward in rewards) >= OFTEN * len(rewards)
    high = best if often else quantiles(rewards, n=100, method="inclusive")[round(100 * WELL) - 1]
    return (low, high) if high - low > ROUNDING else (low, best)
