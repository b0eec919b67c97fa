"""Makes the SFT model: rollouts, filter, lengths, SFT and its control.

In: the recipe, its questions, the model to train. Out: the SFT model with what it learned from; None where SFT is off.
"""

from typing import NamedTuple

from apprentice.flows.examination import control
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.types import Artifact, Checkpoint, KeptRollouts, LengthStats, Questions, Rollouts
from apprentice.tasks.collect import collect
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.lengths import lengths
from apprentice.tasks.sft import sft


class Taught(NamedTuple):
    """The SFT model and what it learned from."""

    rollouts: Rollouts | None
    kept: KeptRollouts
    length_stats: LengthStats
    model: Checkpoint
    controls: dict[str, Checkpoint]

    def artifacts(self) -> list[Artifact]:
        """Return what was made, in order."""
        bought = [self.rollouts] if self.rollouts else []
        return [*bought, self.kept, self.length_stats, self.model, *self.controls.values()]


def teach(run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint) -> Taught | None:
    """Collect or take rollouts, keep the right ones, and train on them."""
    if recipe.sft is None:
        return None
    rollouts = _rollouts(run, recipe)
    kept = filter_rollouts(run, rollouts, questions)
    length_stats = lengths(run, recipe.lengths, kept, base)
    model = sft(run, recipe.sft, base, kept, length_stats, recipe.seed)
    return Taught(rollouts, kept, length_stats, model, control(run, recipe, base, kept, length_stats))


def _rollouts(run: RunContext, recipe: Recipe) -> Rollouts:
    if recipe.collect.dataset is not None:
        return take_rollouts(run, recipe.collect.dataset, recipe.environment)
    assert recipe.teacher is not None
    return collect(run, recipe.collect, recipe.teacher, recipe.environment, recipe.seed_windows().collect)
