"""Improves a champion round by round. Questions for training and evaluation are new in each.

In: a recipe. Out: the folders of the rounds' reports. Round 0 is the recipe itself. A later round is the run of
flows/retrain.py with the recipe of flows/next_round.py. A round that starts twice is the same round.
"""

from datetime import datetime
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from apprentice.flows.long_run import LongRun, show_history
from apprentice.flows.next_round import has_stopped, next_round, nothing_new_to_learn
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import pinned_for_run, train
from apprentice.flows.runtime.run_guard import name_process
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.flows.runtime.work_pool import current_location
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.limits import one_run
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop


def rounds_left(rounds: int, store: LocalStore, started: FlowRun | None) -> int:
    """Return how many of its rounds a flow run has left.

    One that Prefect started again may have finished some: before it crashed, or in a process that lives on though its
    server took it for dead, and held the recipe's lock until now.
    """
    if started is None or started.run_count < 2 or started.start_time is None:
        return rounds
    made = (each.node.record.provenance.made_at for each in past_rounds(store) if each.node.record)
    done = sum(bool(at) and datetime.fromisoformat(at) >= started.start_time.replace(microsecond=0) for at in made)
    return max(0, rounds - done)


@flow(name="improve", flow_run_name="{recipe.name}-improve", result_serializer="json")
def improve(
    overrides: list[str] = [],  # noqa: B006  # Prefect's form shows the default; it is not changed
    rounds: int = 1,
    environment_revision: str = "",
    gpu: str = "",
    runs: Path = Path("runs"),
    *,
    recipe: Recipe,
) -> list[Path]:
    """Run some more rounds of a recipe and return their reports' folders; fewer if it has stopped improving.

    Args:
        overrides: As in `retrain`.
        rounds: How many rounds to run, the first training included. An interrupted round is resumed.
        environment_revision: As in `retrain`.
        gpu: Name of the GPU stages' deployments, such as a100. If empty, they run in this process.
        runs: Folder in which to create the rounds' folders with their reports.
        recipe: The recipe of the first training; the rounds after it differ in windows, student and gate.
    """
    name_process()
    recipe = pinned_for_run(recipe, overrides, environment_revision, gpu)
    store = open_store(recipe, hub_needed=bool(gpu))
    folders: list[Path] = []
    long_run = LongRun.of(recipe)
    with one_run(store, f"improve-{recipe.name}"):
        context = FlowRunContext.get()
        ahead = rounds_left(rounds, store, context and context.flow_run)
        if ahead > 1 and not past_rounds(store) and (later := nothing_new_to_learn(recipe, 1, has_champion=True)):
            announce.warn(f"Only round 0 can run. {' '.join(str(later).split())}")
        for _ in range(ahead):
            if not store.in_reach:
                raise Stop("The Hub, where the history is, does not answer.", "Run again when it is back.")
            past = past_rounds(store)
            with RunServers(recipe) as servers:
                run = RunContext(store, servers, current_location(), **recipe.for_work())
                long_run_questions = long_run.questions(run)
            step = next_round(store, recipe, past, long_run_questions)
            announce.say(f"**Round {step.round.number if step.round else 0} of {recipe.name}**")
            trained = train(step, runs, gpu, partial(long_run.measure, long_run_questions, past))
            folders.append(trained.folder)
            past = past_rounds(store)
            show_history(store, recipe.name, long_run, past, trained.folder)
            if has_stopped(past):
                break
    return folders
