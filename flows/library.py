"""The stages of a run, and a whole run, as functions for notebooks.

In: a recipe and earlier results; an input is a result, an artifact, a key or a folder. Out: results. The recipe's
servers and its store are opened for each call, and no flow or Prefect server is needed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from apprentice.flows.lessons import filtered, rollouts_of, taken_rows
from apprentice.flows.named_models import checkpoint_of
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.preflight import EvaluationPreflight, Preflight
from apprentice.flows.recipe.loading import RecipeLike, load_recipe
from apprentice.flows.recipe.location import given_path
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.results import Model, Result, Rows, Run, open_artifact
from apprentice.flows.retrain import pinned_for_run
from apprentice.flows.retrain import retrain as retrain_flow
from apprentice.flows.runtime.prefect_server import start_prefect_server
from apprentice.flows.runtime.servers import RunServers, check_runs, open_store
from apprentice.tasks.artifacts.foreign.rows import pinned_rows
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import (
    Artifact,
    Checkpoint,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    Rollouts,
    SftCheckpoint,
)
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.grpo import grpo as grpo_stage
from apprentice.tasks.lengths import lengths
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import DatasetSpec, ProbeSpec
from apprentice.tasks.sft import sft as sft_stage

A = TypeVar("A", bound=Artifact)
Given = Result[Any] | Artifact | str | Path
"""An earlier call's result, its artifact, a key, or a folder."""


def rollouts_given(stages: Pipeline, given: Given) -> Rollouts | KeptRollouts:
    """Return rollouts, or rows that were kept of some; those of a folder are verified. Raises Stop."""
    run, recipe = stages.run, stages.recipe
    found = _artifact(run.store, given, (Rollouts, KeptRollouts), "rollouts", "the result of `collect`")
    if isinstance(found, Path):
        spec = pinned_rows(DatasetSpec(path=str(found)))
        return taken_rows(run, recipe.collect, recipe.teacher, recipe.environment, spec, stages.questions)
    return found


def model_given(stages: Pipeline, given: Given | None) -> Checkpoint:
    """Return a model: the recipe's student if none is given. Raises Stop."""
    if given is None:
        return stages.models.base
    if isinstance(given, str) and not given_path(given).is_dir():
        return checkpoint_of(stages, given)
    found = _artifact(stages.run.store, given, (Checkpoint,), "a model", "the result of `sft` or `grpo`")
    return checkpoint_of(stages, str(found)) if isinstance(found, Path) else found


def _artifact(store: LocalStore, given: Given, kinds: tuple[type[A], ...], wanted: str, made_by: str) -> A | Path:
    """Return an artifact of the store, or a folder that is no artifact. Raises Stop for one of another kind."""
    remedy = f"Give {made_by}, its key, or a folder."
    found: Any = given
    if isinstance(given, Result):
        found = given.artifact if given.store.root == store.root else given.folder
    if not isinstance(found, Artifact):
        folder = given_path(found)
        if folder.is_dir() and not folder.resolve().is_relative_to(store.root.resolve()):
            return folder
        if isinstance(found, Path) and not folder.is_dir():
            raise Stop(f"There is no folder {folder}.", remedy)
        found = open_artifact(found, store.root).artifact
    if not isinstance(found, kinds):
        raise Stop(f"{found.repository}@{found.key} is {type(found).__name__}, not {wanted}.", remedy)
    return found


def pinned_recipe(given: RecipeLike) -> Recipe:
    """Return the recipe as a run of it would use it, so that both find the same artifacts. Raises Stop."""
    return pinned_for_run(load_recipe(given), [])


@contextmanager
def at_work(recipe: Recipe, preflight: Callable[[RunContext, str], None]) -> Iterator[Pipeline]:
    """Yield the recipe's stages; stops the servers that they started."""
    with RunServers(recipe) as servers:
        run = RunContext(open_store(recipe, hub_needed=False), servers, **recipe.for_work())
        run.preflight = preflight
        yield Pipeline(run, recipe)
        announce.show_cached()


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
    with at_work(chosen, Preflight(chosen.only(grpo=None), trains_here=False)) as stages:
        found = rollouts_of(stages.run, chosen, stages.questions)
        if found is None:
            raise Stop(f"{chosen.name} has no teacher to collect from.", "Name one: teacher.model.")
        return Rows(stages.run.store, found)


def sft(recipe: RecipeLike, rollouts: Given, model: Given | None = None) -> Model[SftCheckpoint]:
    """Filter rollouts by reward and fine-tune a model on the rest.

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
    chosen.require(SftSpec.section)
    with at_work(chosen, Preflight(chosen.only(grpo=None, teacher=None), trains_here=True)) as stages:
        assert chosen.sft is not None
        run, student, given = stages.run, model_given(stages, model), rollouts_given(stages, rollouts)
        if not isinstance(given, KeptRollouts):
            given = filtered(run, given, stages.questions, student, thinks=bool(chosen.student.thinking))
        stats = lengths(run, chosen.lengths, given, student)
        return Model(run.store, sft_stage(run, chosen.sft, student, given, stats, chosen.seed))


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
    chosen.require(GrpoSpec.section)
    with at_work(chosen, Preflight(chosen.only(sft=None, teacher=None), trains_here=True)) as stages:
        assert chosen.grpo is not None
        run, begins = stages.run, model_given(stages, model)
        probing = chosen if chosen.level_environments() else chosen.model_copy(update={"probe": ProbeSpec(questions=0)})
        task = Pipeline(run, probing, base=begins).task(chosen.grpo)
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
    with at_work(chosen, EvaluationPreflight(chosen, chosen.seed_windows().evaluate)) as stages:
        found = model_given(stages, model)
        return Rows(stages.run.store, stages.held_out({found.stage: found})[found.stage])


def retrain(recipe: RecipeLike, runs: str | Path = "runs") -> Run:
    """Train a student as a recipe describes, and measure the gain.

    Args:
        recipe: A `Recipe`, or what `load_recipe` takes: a file, a name such as "laptop", a dictionary.
        runs: The folder in which the run's folder with its report is created.

    Returns:
        The finished run. Stages that exist in the recipe's store are not run again.

    Raises:
        Stop: Something needs a person; its text has the cause and what to do. What is finished is kept: the same call
            goes on from there.
    """
    chosen, runs = load_recipe(recipe), given_path(runs)
    check_runs(runs)
    start_prefect_server()
    results: dict[Any, str] = {PREFECT_LOCAL_STORAGE_PATH: str(chosen.store.path.absolute() / ".prefect")}
    named = "PREFECT_LOCAL_STORAGE_PATH" in os.environ
    with nullcontext() if named else temporary_settings(updates=results):
        folder = retrain_flow(recipe=chosen, runs=runs)
    announce.show_cached()
    return Run(folder, open_store(chosen, hub_needed=False))
