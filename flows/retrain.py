"""The whole pipeline: teacher rollouts, filter, SFT, GRPO, evaluation, gate and release.

In: a recipe. Out: the run's folder with its report. Every stage is a Prefect task that first looks up its artifact by
key; an existing artifact is a cache hit.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from apprentice.flows.dashboard_report import link_up
from apprentice.flows.pipeline import Pipeline
from apprentice.flows.preflight import Preflight
from apprentice.flows.promotion import promotion
from apprentice.flows.recipe.loading import with_overrides
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.report import write_report
from apprentice.flows.run_artifacts import Artifacts
from apprentice.flows.runtime.run_guard import name_process
from apprentice.flows.runtime.servers import RunServers, open_store, run_folder, with_discovered_settings
from apprentice.flows.runtime.work_pool import Pool, current_location
from apprentice.flows.watch import seen
from apprentice.tasks.advice.ending import Ending
from apprentice.tasks.artifacts.types import Checkpoint
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.training.tracking.reporters import check_space
from apprentice.tasks.verdict import verdict


def _run_name() -> str:
    given = flow_run.parameters
    recipe = Recipe.model_validate(given["recipe"])
    with suppress(Stop):  # the run itself reports wrong overrides
        recipe = with_overrides(recipe, given.get("overrides", []))
    return f"{recipe.name}-seed{recipe.seed}"


@flow(name="retrain", flow_run_name=_run_name, result_serializer="json")
def retrain(
    overrides: list[str] = [],  # noqa: B006  # Prefect's form shows the default; it is not changed
    rescore: bool = False,
    environment_revision: str = "",
    gpu: str = "",
    runs: Path = Path("runs"),
    *,
    recipe: Recipe,
) -> Path:
    """Train a student as the recipe describes and report the gain; return the run's folder.

    Args:
        overrides: Fields of the recipe to change for this run, each as path=value, such as seed=1 or
            grpo.max_steps=50.
        rescore: Score the newest rollouts of the recipe's teacher again under the environment's present rewards,
            whatever changed in it, and go on from them.
        environment_revision: Revision of the environment's server; another revision invalidates the cache. If empty,
            the last one that `watch` saw of a watched Space.
        gpu: Name of the GPU stages' deployments, such as a100. If empty, they run in this process.
        runs: Folder in which to create the run's folder with its report.
        recipe: The recipe of the run.
    """
    name_process()
    trained = train(pinned_for_run(recipe, overrides, environment_revision, gpu), runs, gpu, rescore=rescore)
    name = "Cached" if trained.cached else trained.ending.state.capitalize()
    message = ("Every stage was a cache hit. " if trained.cached else "") + trained.ending.sentence()
    return Completed(name=name, message=message, data=trained.folder)  # type: ignore[return-value]


def nothing_to_do(recipe: Recipe, runs: Path) -> "Trained | None":
    """The finished run, where the store has every stage; None where one has to run.

    Needs no Prefect server, no environment and no torch: keys come from the recipe. Raises Stop.
    """
    with announce.held() as say:
        try:
            done = train(pinned_for_run(recipe, []), runs, gpu="", only_cached=True)
        except _StageMissing:
            return None
        say()
    return done


class _StageMissing(Exception):
    """A stage is not in the store."""


def _missing(_: RunContext, stage: str) -> None:
    raise _StageMissing(stage)


class Trained(NamedTuple):
    """A finished run."""

    folder: Path
    cached: bool
    """Whether every stage was a cache hit."""
    ending: Ending


def pinned_for_run(recipe: Recipe, overrides: list[str], environment_revision: str = "", gpu: str = "") -> Recipe:
    """Return the recipe with overrides applied and everything pinned that it names. Raises Stop.

    Args:
        gpu: The deployment that trains, on a work pool with GPUs; none trains here.
    """
    recipe = with_discovered_settings(with_overrides(recipe, overrides))
    if recipe.buys and recipe.teacher is not None:
        located = recipe.teacher.located()
        if located != recipe.teacher:
            announce.say(f"The teacher's key goes to {located.base_url}, as OPENAI_BASE_URL says.")
        recipe = recipe.model_copy(update={"teacher": located})
    return (
        recipe.at_revision(environment_revision or seen(recipe.server.space))
        .with_precision(bool(gpu))
        .with_student_pinned()
    )


def train(
    recipe: Recipe,
    runs: Path,
    gpu: str,
    before_gate: Callable[[RunContext, Checkpoint], None] | None = None,
    rescore: bool = False,
    only_cached: bool = False,
) -> Trained:
    """Run the whole pipeline once, within a flow.

    Args:
        before_gate: Called with the challenger before the gate decides, which ends a round.
        rescore: Replay recorded episodes under the environment's rule of now in place of a collection.
        only_cached: Raise at the first stage that the store does not have; then no flow is needed.
    """
    announce.forget_warnings()
    link_up(recipe)
    if "trackio" in recipe.report_to:
        check_space(recipe.trackio, recipe.name)
    with run_folder(runs, recipe) as folder, RunServers(recipe) as servers:
        store = open_store(recipe, hub_needed=bool(gpu))  # GPU stages on other machines read their inputs from the Hub
        store.send_waiting()  # artifacts of an earlier run that could not reach the Hub
        pool = Pool(recipe, gpu) if gpu else None
        run = RunContext(store, servers, current_location(), pool, **recipe.for_work())
        preflight = Preflight(recipe, trains_here=not gpu, rescore=rescore)
        run.preflight = _missing if only_cached else preflight
        stages = Pipeline(run, recipe, rescore)
        stages.learn_scale()
        _ = stages.levels  # an invalid one is refused before anything is bought
        if preflight.prediction and recipe.learns_from_rows:
            preflight.prediction.say_again(store.fetch(stages.lessons.kept))
        models = stages.train()

        evaluations = stages.held_out(models)
        regression_evaluations = stages.regressions(
            {name: models[name] for name in (stages.protected(), models.last_name)}
        )
        thoughts = stages.thoughts(models.last)
        results = verdict(run, recipe.gate, evaluations, regression_evaluations, *stages.for_verdict())
        if before_gate is not None:
            before_gate(run, models.last)
        outcome = promotion(stages, evaluations, regression_evaluations, results)

    ended = write_report(folder, Artifacts(stages, evaluations, regression_evaluations, results, outcome, thoughts))
    return Trained(folder, all(stage.state == "cached" for stage in run.log), ended)
