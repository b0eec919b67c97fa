"""Learns from the teacher's episodes which reward counts as right, where neither recipe nor server say it.

In: a recipe whose environment is known by its server only, the teacher's rollouts. Out: the recipe with
`environment.settings.scale`. The rollouts are collected as they are, so nothing is bought twice; the episodes are
scored again under the scale.
"""

from collections.abc import Sequence
from statistics import quantiles

from apprentice.envs.catalog import environment_class
from apprentice.envs.openenv.discovered import DiscoveredEnvironment
from apprentice.envs.reward import ROUNDING, is_right
from apprentice.flows.beginning import question_set
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.record import read_rows
from apprentice.tasks.reporting import announce

OFTEN = 0.2
"""Share of the episodes that earn the highest reward, where it is the highest that can be had."""
WELL = 0.75
"""Where rewards are all different, the share of the teacher's episodes that a right one must at least equal."""
PROBABLY_RIGHT = 0.5
"""Where all episodes earn the same, the least of it that is taken for the highest reward."""


def with_learned_scale(run: RunContext, recipe: Recipe) -> Recipe:
    """Return the recipe with the scale of its environment's rewards, if it has to be learned. Raises Stop."""
    spec = recipe.environment
    known = environment_class(spec.name)
    if not issubclass(known, DiscoveredEnvironment) or {"scale", "reward_range"} & spec.settings.keys():
        return recipe
    if not recipe.buys or recipe.teacher is None or recipe.chooses_seeds:
        return recipe
    question_set(run, recipe)  # whether the task can be used at all is found out before anything is bought
    rollouts = collect(run, recipe.collect.by_teacher(), recipe.teacher, spec, recipe.seed_windows().collect)
    rows = read_rows(run.store.fetch(rollouts) / "rollouts.jsonl")
    rewards = [row["reward"] for row in rows if row["reward"] is not None and not row["failed_at"]]
    if (scale := scale_of(rewards, spec.questions == 1)) is None:
        return recipe
    low, high = scale
    reached = sum(reward >= high - ROUNDING for reward in rewards)
    announce.say(
        f"The teacher's rewards lie between {min(rewards):g} and {max(rewards):g}, so {high:g} and more counts as "
        f"right: {reached} of {len(rewards)} episodes have it. To choose otherwise: environment.scale: [{low:g}, {high:g}]."
    )
    return recipe.model_copy(update={"environment": spec.with_settings(spec.settings | {"scale": [low, high]})})


def scale_of(rewards: Sequence[float], is_one_task: bool = False) -> tuple[float, float] | None:
    """Return the rewards that count as 0.0 and 1.0; None where 1.0 is the highest already, or nothing can be learned.

    The highest reward counts as right if many episodes have it; else the rewards are sums, and the best quarter of the
    episodes is right. Of one task, the teacher may know one way only: what it earns counts as right, and training goes
    on from there.
    """
    if len(rewards) < 2:
        return None
    low, best = min(rewards), max(rewards)
    if is_right(best) and low >= 0:
        return None
    if best - low <= ROUNDING:
        if not is_one_task and best < PROBABLY_RIGHT:
            return None
        return (0.0 if best > 0 else best - 1.0, best)
    often = sum(reward >= best - ROUNDING for reward in rewards) >= OFTEN * len(rewards)
    high = best if often else quantiles(rewards, n=100, method="inclusive")[round(100 * WELL) - 1]
    return (low, high) if high - low > ROUNDING else (low, best)
