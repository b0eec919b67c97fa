"""Makes the SFT model: rollouts, filter, lengths, SFT and its control.

In: the recipe, its questions, the model to train. Out: the SFT model with what it learned from; None where SFT is off.
"""

from typing import NamedTuple

from apprentice.flows.examination import control
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.rescoring import made_or_rescored
from apprentice.tasks.analysis.diagnose import learned_nothing
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Evaluation,
    KeptRollouts,
    LengthStats,
    Questions,
    Rollouts,
)
from apprentice.tasks.collect import collect
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.episodes.jsonl import read_questions
from apprentice.tasks.episodes.record import read_episodes
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.lengths import lengths
from apprentice.tasks.mix import for_the_teacher, mix_rollouts, tried_questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.stages import EvaluateSpec, MixSpec, Seeds, Window
from apprentice.tasks.sft import sft
from apprentice.tasks.training.trainer import read_log


class Taught(NamedTuple):
    rollouts: Rollouts | None
    kept: KeptRollouts
    length_stats: LengthStats
    model: Checkpoint
    controls: dict[str, Checkpoint]

    def artifacts(self) -> list[Artifact]:
        """Return what was made, in order."""
        bought = [self.rollouts] if self.rollouts else []
        return [*bought, self.kept, self.length_stats, self.model, *self.controls.values()]


def teach(
    run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint, rescore: bool = False
) -> Taught | None:
    """Collect, take or rescore rollouts, keep the right ones, and train on them."""
    if recipe.sft is None:
        return None
    rollouts, kept = _lessons(run, recipe, questions, base, rescore)
    length_stats = lengths(run, recipe.lengths, kept, base)
    model = sft(run, recipe.sft, base, kept, length_stats, recipe.seed)
    if idle := learned_nothing(read_log(run.store.fetch(model))):
        announce.warn(idle)
    return Taught(rollouts, kept, length_stats, model, control(run, recipe, base, kept, length_stats))


def _lessons(
    run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint, rescore: bool
) -> tuple[Rollouts | None, KeptRollouts]:
    """Return the teacher's rollouts, and all rows to learn from: the teacher's, the student's own, earlier rounds'."""
    tries = _tries(run, recipe, questions, base) if recipe.collect.students else None
    rollouts = rollouts_of(run, recipe, questions, tries, rescore)
    before = recipe.round.kept if recipe.round else []
    if rollouts is not None and tries is None and not before:
        return rollouts, filter_rollouts(run, rollouts, questions)
    earlier = {str(number): run.store.at(KeptRollouts, revision) for number, revision in enumerate(before)}
    spec = MixSpec(keep=recipe.collect.keep, replay=recipe.improve.replay if before else 0.0)
    teacher = recipe.teacher.called if recipe.teacher and rollouts else ""
    given = rollouts, tries, earlier, teacher, recipe.seed
    return rollouts, mix_rollouts(run, spec, recipe.environment, questions, *given)


def _tries(run: RunContext, recipe: Recipe, questions: Questions, base: Checkpoint) -> Evaluation:
    asked = tried_questions(run, questions)
    spec = EvaluateSpec(
        questions=asked.evaluate,
        decoding="sampled",
        temperature=recipe.grpo.temperature if recipe.grpo else 1.0,
        max_new_tokens=recipe.evaluate.max_new_tokens,
        batch_size=recipe.evaluate.batch_size,
        samples=recipe.collect.students,
    )
    stage = evaluate.titled("Tries of the student in {environment}")
    return stage(run, spec, base, recipe.environment, asked, recipe.seed)


def rollouts_of(
    run: RunContext, recipe: Recipe, questions: Questions, tries: Evaluation | None = None, rescore: bool = False
) -> Rollouts | None:
    """Return the rollouts of the teacher, or those that exist; None without either, or with no question left to ask."""
    if recipe.collect.dataset is not None:
        taken = recipe.collect.dataset, recipe.environment, questions, recipe.collect.unverified
        return made_or_rescored(run, take_rollouts, taken, rescore)
    if recipe.teacher is None:
        return None
    window: Window | Seeds = recipe.seed_windows().collect
    if recipe.chooses_seeds:
        played = read_episodes(run.store.fetch(tries)) if tries else []
        rows = read_questions(run.store.fetch(questions), "collect")
        used = [row["seed"] for row in rows if row["used"]]
        ahead = for_the_teacher(used, played, recipe.collect.teacher_questions)
        if not ahead:
            return None
        window = Seeds(chosen=tuple(ahead))
    given = recipe.collect.by_teacher(), recipe.teacher, recipe.environment, window
    return made_or_rescored(run, collect, given, rescore)
