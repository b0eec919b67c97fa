"""The whole run: a teacher plays, a student learns from it and from the environment, is examined and judged.

In: a recipe. Out: the run's folder with its report. Every stage is a Prefect task whose artifact is looked up by its
key first; what exists is not made again.
"""

from contextlib import suppress
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from apprentice.flows.examination import guard_rails, held_out, promotion
from apprentice.flows.preflight import Preflight
from apprentice.flows.probe import ladder, probe
from apprentice.flows.recipe.loading import with_overrides
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.report import Artifacts, link_up, write_report
from apprentice.flows.runtime.dispatch import Pool
from apprentice.flows.runtime.place import current_location
from apprentice.flows.runtime.run_folder import run_folder
from apprentice.flows.runtime.servers import RunServers
from apprentice.flows.runtime.store import open_store
from apprentice.flows.watch import seen
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.grpo import grpo
from apprentice.tasks.lengths import lengths
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.sft import sft
from apprentice.tasks.student import student
from apprentice.tasks.training.reporters import check_reporters
from apprentice.tasks.training.trackio import check_space
from apprentice.tasks.verdict import verdict


def _run_name() -> str:
    given = flow_run.parameters
    recipe = Recipe.model_validate(given["recipe"])
    with suppress(Stop):  # the run itself says what is wrong with them
        recipe = with_overrides(recipe, given.get("overrides", []))
    return f"{recipe.name}-seed{recipe.seed}"


@flow(name="retrain", flow_run_name=_run_name, result_serializer="json")
def retrain(
    recipe: Recipe,
    runs: Path = Path("runs"),
    gpu: str = "",
    environment_revision: str = "",
    overrides: list[str] = [],  # noqa: B006  # Prefect's form shows the default; it is not changed
) -> Path:
    """Trains a student as the recipe says and reports what it learned; returns the run's folder.

    Args:
        recipe: One whole run.
        runs: Where the run's folder with its report is made.
        gpu: The deployments of the GPU stages, such as a100; left out, they run in this process.
        environment_revision: Of what serves the environment, where a new one shall be learned anew; left out, the one
            that `watch` saw last, of a Space that is watched.
        overrides: Fields of the recipe to change for this run, each as path=value, such as seed=1 or
            grpo.max_steps=50.
    """
    recipe = with_overrides(recipe, overrides)
    recipe = recipe.at_revision(environment_revision or seen(recipe.server.space)).with_student_pinned()
    link_up(recipe)
    if "trackio" in recipe.report_to:
        check_space(recipe.trackio, recipe.name)
    if not gpu:
        check_reporters(recipe.report_to)
    with run_folder(runs, recipe) as folder, RunServers(recipe) as servers:
        store = open_store(recipe, hub_needed=bool(gpu))  # the GPU stages' machines find what they need there
        store.send_waiting()  # of an earlier run, whose Hub was out of reach
        pool = Pool(recipe, gpu) if gpu else None
        work = RunContext(store, servers, current_location(), pool, **recipe.for_work())
        work.preflight = Preflight(recipe, trains_here=not gpu)
        task, seed = recipe.environment, recipe.seed

        asked = questions(work, task, recipe.seed_windows(), recipe.evaluate.questions)
        rungs = ladder(work, recipe, asked)
        rollouts = collect(work, recipe.collect, recipe.teacher, task, recipe.seed_windows().collect)
        kept = filter_rollouts(work, rollouts, asked)
        base = student(work, recipe.student, task, asked, seed)
        length_stats = lengths(work, recipe.lengths, kept, base)
        sft_model = sft(work, recipe.sft, base, kept, length_stats, seed)
        probed = probe(work, recipe, rungs, sft_model)
        trained = grpo(work, recipe.grpo, sft_model, probed.environment, probed.questions, seed)

        examined = held_out(work, recipe, asked, {"base": base, "sft": sft_model, "grpo": trained})
        guards = guard_rails(work, recipe, {"base": base, "grpo": trained})
        results = verdict(work, recipe.gate, examined, guards, task, rollouts, trained, recipe.grpo.beta)
        outcome = promotion(work, recipe, asked, base, trained, examined, guards, results)

    artifacts = Artifacts(
        asked, rollouts, kept, base, length_stats, sft_model, probed, trained, examined, guards, results, outcome
    )
    write_report(folder, recipe, work, artifacts)
    if all(stage.state == "cached" for stage in work.log):
        return Completed(name="Cached", message="Every artifact was there already.", data=folder)  # type: ignore[return-value]
    return folder
