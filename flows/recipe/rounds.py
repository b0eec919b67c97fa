"""The recipe of one round of `apprentice improve`: its seed windows, its rung, its gate's level.

In: a recipe and what the round knows of those before. Out: a recipe that `retrain` could run; a pure function. Windows
of different rounds are disjoint by construction: round r begins r sizes after the first one's start, and nothing else
begins before the last round that fits.
"""

from typing import Any

from apprentice.flows.recipe.recipe import BLOCK, Recipe
from apprentice.flows.recipe.sections import SHIFT, RoundSpec
from apprentice.tasks.analysis.statistics import level_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import Window

LONG_RUN = 3 * BLOCK - SHIFT
"""First seed of the window that no gate reads: the last part of the block of evaluations."""


def round_of(recipe: Recipe, plan: RoundSpec | None, rung: int = 0) -> Recipe:
    """Return the recipe of a round; of round 0, without a plan, with the first rung. Raises Stop if no seeds are left.

    Args:
        plan: What the round knows of the rounds before.
        rung: Index of the rung of `improve.ladder` that the round plays; ignored without a ladder.
    """
    changed: dict[str, Any] = {}
    if recipe.improve.ladder:
        own = recipe.environment.model_dump(exclude={"version", "code"})
        changed["environment"] = own | {"settings": recipe.improve.ladder[rung]}
    if plan is not None:
        if plan.number >= (lasts := rounds_that_fit(recipe)):
            raise Stop(
                f"The seed windows of {recipe.name} last {lasts} rounds, and all of them were run.",
                "Give the recipe another name and smaller windows (windows.collect, grpo and evaluate), or move a "
                "window that stands in the way.",
            )
        changed["windows"] = {
            purpose: {"start": window.start + plan.number * window.size, "size": window.size}
            for purpose, window in recipe.seed_windows()
        }
        changed["round"] = plan.model_dump(mode="json")
        changed["gate"] = recipe.gate.model_dump(mode="json") | {"level": level_of(plan.number)}
    return Recipe.model_validate(recipe.as_parameters() | changed) if changed else recipe


def rounds_that_fit(recipe: Recipe) -> int:
    """Return how many rounds the seed windows last, the first training included."""
    windows = {purpose: window for purpose, window in recipe.seed_windows()}
    others = [LONG_RUN, *(recipe.guard_window(index).start for index in range(len(recipe.guards)))]
    fits = []
    for purpose, window in windows.items():
        ends = [each.start for name, each in windows.items() if name != purpose] + others
        if purpose != "evaluate" and getattr(recipe.windows, purpose).start is None:
            ends.append(window.start + SHIFT)  # where the windows of the next recipe seed begin
        room = min((end for end in ends if end > window.start), default=10 * BLOCK) - window.start
        fits.append(room // window.size)
    return min(fits)


def long_run_window(recipe: Recipe) -> Window:
    """Return the seeds of the window that no gate reads: twice its questions, as repeated ones are skipped."""
    return Window(start=LONG_RUN, size=2 * max(recipe.improve.long_run, 1))
