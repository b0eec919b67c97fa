"""The stages of a run, each as a function of a recipe and of what was made before.

In: a recipe, results. Out: a result. Each is the stage that the flow runs, with the same key: what a run has made is a
cache hit here, and the other way round.
"""

from contextlib import AbstractContextManager
from typing import Any

from apprentice.flows.beginning import asked
from apprentice.flows.examination import held_out
from apprentice.flows.library.inputs import Given, model_given, rollouts_given
from apprentice.flows.library.results import Model, Rows
from apprentice.flows.library.work import at_work, pinned_recipe
from apprentice.flows.preflight import EvaluationPreflight, Preflight
from apprentice.flows.probe import ladder, probe
from apprentice.flows.recipe.loading import RecipeLike
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.teaching import rollouts_of
from apprentice.tasks.artifacts.types import Evaluation, GrpoCheckpoint, KeptRollouts, Rollouts, SftCheckpoint
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.grpo import grpo as grpo_stage
from apprentice.tasks.lengths import lengths
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import ProbeSpec
from apprentice.tasks.sft import sft as sft_stage
from apprentice.tasks.training.reporters import check_reporters


def collect(recipe: RecipeLike) -> Rows[Rollouts]:
    """Have the recipe's teacher play one episode for each seed of `windows.collect`.

    Args:
        recipe: A `Recipe`, or what `load_recipe` takes. Also read: environment, server, teacher, collect.

    Returns:
        All episodes, failed ones too. Its artifact has counts of episodes and tokens, and `cost_usd`.

    Raises:
        Stop: The recipe has no teacher, its key is missing, the budget is used up, or a server is out of reach.
            Finished episodes are kept: the same call goes on from them.
    """
    chosen = pinned_recipe(recipe)
    with at_work(chosen, Preflight(_only(chosen, grpo=None), trains_here=False)) as run:
        found = rollouts_of(run, chosen, asked(run, chosen))
        if found is None:
            raise Stop(f"{chosen.name} has no teacher to collect from.", "Name one: teacher.model.")
        return Rows(run.store, found)


def sft(recipe: RecipeLike, rollouts: Given, model: Given | None = None) -> Model[SftCheckpoint]:
    """Filter rollouts by reward and fine-tune a model on what is kept.

    Args:
        recipe: As for `collect`. Read: environment, windows.evaluate (its questions are kept from training), student,
            lengths, sft, seed.
        rollouts: Of `collect`, or a key; or a folder of JSON lines as `collect` writes them. Kept rollouts are not
            filtered again.
        model: What to train: a result, a key, a folder of a transformers model, or owner/name@COMMIT on the Hub.
            Default: the recipe's student.

    Returns:
        The model; `to_pandas()` has the curves, `inputs["kept"]` the rows that it learned from.

    Raises:
        Stop: The recipe turns SFT off, no episode was kept, rows are of another environment, or the model does not fit
            into memory. After an interruption the same call goes on from the last checkpoint.
    """
    chosen = pinned_recipe(recipe)
    with _training(chosen, "sft", _only(chosen, grpo=None, teacher=None)) as run:
        assert chosen.sft is not None
        questions = asked(run, chosen)
        student = model_given(run, chosen, model, questions)
        given = rollouts_given(run, chosen, rollouts, questions)
        kept = given if isinstance(given, KeptRollouts) else filter_rollouts(run, given, questions)
        stats = lengths(run, chosen.lengths, kept, student)
        return Model(run.store, sft_stage(run, chosen.sft, student, kept, stats, chosen.seed))


def grpo(recipe: RecipeLike, model: Given | None = None) -> Model[GrpoCheckpoint]:
    """Train a model in the environment by GRPO, on the questions of `windows.grpo`.

    Args:
        recipe: As for `collect`. Read: environment, server, windows, student, grpo, seed; with `grpo.auto_difficulty`
            also probe.
        model: What to train, as for `sft`.

    Returns:
        The model; `to_pandas()` has the curves.

    Raises:
        Stop: The recipe turns GRPO off, the server grants too few sessions or is lost. After an interruption the same
            call goes on from the last step.
    """
    chosen = pinned_recipe(recipe)
    with _training(chosen, "grpo", _only(chosen, sft=None, teacher=None)) as run:
        assert chosen.grpo is not None
        questions = asked(run, chosen)
        begins = model_given(run, chosen, model, questions)
        probing = chosen if chosen.rungs() else chosen.model_copy(update={"probe": ProbeSpec(questions=0)})
        task = probe(run, probing, ladder(run, chosen, questions), begins)
        assert task is not None
        return Model(run.store, grpo_stage(run, chosen.grpo, begins, task.environment, task.questions, chosen.seed))


def evaluate(recipe: RecipeLike, model: Given | None = None) -> Rows[Evaluation]:
    """Have a model play the held-out questions: the same prompt and parser as in training.

    Args:
        recipe: As for `collect`. Read: environment, server, windows, evaluate, seed.
        model: A result, a key, `champion`, a folder, or owner/name@COMMIT on the Hub. Default: the recipe's student.

    Returns:
        One row per episode. Its artifact has the shares `accuracy` (reward 1.0), `format_compliance` and `mean_score`.

    Raises:
        Stop: There is no such model, or the environment was lost; finished episodes are kept.
    """
    chosen = pinned_recipe(recipe)
    with at_work(chosen, EvaluationPreflight(chosen, chosen.seed_windows().evaluate)) as run:
        questions = asked(run, chosen)
        found = model_given(run, chosen, model, questions)
        return Rows(run.store, held_out(run, chosen, questions, {found.stage: found})[found.stage])


def _training(recipe: Recipe, stage: str, checked: Recipe) -> AbstractContextManager[RunContext]:
    """The context of a training, after the checks of `checked`. Raises Stop if the recipe turns the stage off."""
    if getattr(recipe, stage) is None:
        raise Stop(f"{recipe.name} has {stage}: off.", "Remove that from the recipe.")
    check_reporters(recipe.report_to)
    return at_work(recipe, Preflight(checked, trains_here=True))


def _only(recipe: Recipe, **without: Any) -> Recipe:
    """Return the recipe for the checks of one stage: guard rails and other stages are not played."""
    return recipe.model_copy(update={"guards": [], **without})
