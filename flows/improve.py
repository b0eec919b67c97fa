"""Improves a champion round by round: what is asked, learned and examined in a round is new.

In: a recipe. Out: the folders of the rounds' reports. A round is the run of flows/retrain.py with the recipe that
flows/planning.py derives from the store's history; round 0 is the recipe itself. A round begun twice is the same round.
"""

from datetime import datetime
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from apprentice.flows.curve import long_run_questions, measure, show_history
from apprentice.flows.planning import has_stopped, next_round
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import pinned_for_run, train
from apprentice.flows.runtime.pool import current_location
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, one_run
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
    recipe: Recipe,
    rounds: int = 1,
    runs: Path = Path("runs"),
    gpu: str = "",
    environment_revision: str = "",
    overrides: list[str] = [],  # noqa: B006  # Prefect's form shows the default; it is not changed
) -> list[Path]:
    """Run some more rounds of a recipe and return their reports' folders; fewer if it has stopped improving.

    Args:
        recipe: The recipe of the first training; the rounds after it differ in windows, student and gate.
        rounds: How many rounds to run, the first training included. An interrupted round is resumed.
        runs: Folder in which to create the rounds' folders with their reports.
        gpu: Name of the GPU stages' deployments, such as a100. If empty, they run in this process.
        environment_revision: As in `retrain`.
        overrides: As in `retrain`.
    """
    recipe = pinned_for_run(recipe, overrides, environment_revision)
    store = open_store(recipe, hub_needed=bool(gpu))
    folders: list[Path] = []
    with one_run(store, f"improve-{recipe.name}"):
        context = FlowRunContext.get()
        for _ in range(rounds_left(rounds, store, context and context.flow_run)):
            if not store.in_reach:
                raise Stop("The Hub, where the history is, does not answer.", "Run again when it is back.")
            past = past_rounds(store)
            with RunServers(recipe) as servers:
                run = RunContext(store, servers, current_location(), **recipe.for_work())
                long_run = long_run_questions(run, recipe)
            step = next_round(store, recipe, past, long_run)
            announce.say(f"**Round {step.round.number if step.round else 0} of {recipe.name}**")
            trained = train(step, runs, gpu, partial(measure, recipe, long_run, past))
            folders.append(trained.folder)
            past = past_rounds(store)
            show_history(store, recipe, past, trained.folder)
            if has_stopped(past):
                break
    return folders
