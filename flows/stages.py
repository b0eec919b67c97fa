"""The GPU stages as separate flows, for deployments on the GPU work pool.

In: the recipe, which names servers and store, and the stage's arguments, with artifacts as references.
Out: the artifact in the store.
A stage that loses its environment or the Hub saves its progress, frees the device and fails in a state that names the
cause; the flow that dispatched it waits and schedules it again.
"""

import inspect
from typing import Annotated, Any, Union

from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed, State
from pydantic import Field

from apprentice.envs.wire.metrics import counted
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.flows.runtime.work_pool import AWAY, COUNTS, current_location
from apprentice.tasks.artifacts.types import BaseStudent, Checkpoint, Release
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.reporting.failures import failure_of
from apprentice.tasks.training.tracking.reporters import check_reporters
from apprentice.tasks.trainings import TRAININGS

AnyCheckpoint = Annotated[
    Union[(BaseStudent, Release, *(training.checkpoint for training in TRAININGS))],
    Field(discriminator="stage"),
]


def _as_flow(stage: Stage[..., Any]) -> Flow[..., State]:
    """Return a flow whose parameters are the recipe and what the stage takes."""

    def run(recipe: Any, *given: Any) -> State:
        return _made(recipe, stage, *given)

    _, *taken = inspect.signature(stage.body).parameters.values()
    shown = [
        each.replace(annotation=AnyCheckpoint if each.annotation is Checkpoint else each.annotation) for each in taken
    ]
    first = inspect.Parameter("recipe", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Recipe)
    run.__signature__ = inspect.Signature([first, *shown], return_annotation=State)  # type: ignore[attr-defined]
    run.__name__ = run.__qualname__ = f"{stage.name}_stage"
    run.__doc__ = stage.body.__doc__
    return flow(name=stage.name, result_serializer="json")(run)


STAGES = {stage.name: _as_flow(stage) for stage in (*(training.stage for training in TRAININGS), evaluate)}
"""The flows by stage name. A deployment names one as an attribute of this module, such as `sft_stage`."""


def __getattr__(name: str) -> Flow[..., State]:
    if (found := STAGES.get(name.removesuffix("_stage"))) and name.endswith("_stage"):
        return found
    raise AttributeError(name)


def _made(recipe: Recipe, stage: Stage[..., Any], *given: Any) -> State:
    """Run the stage, with short timeouts for its environment so that the device does not wait."""
    with RunServers(recipe, holds_device=True) as servers:
        store = open_store(recipe, holds_device=True)
        run = RunContext(store, servers, current_location(), holds_device=True, **recipe.for_work())
        if stage is not evaluate:
            check_reporters(recipe.report_to, recipe.name)
        counts: dict[str, float] = {}
        try:
            with counted() as counts:
                artifact = stage(run, *given)
        except Exception as error:
            failure = failure_of(error)
            if failure.remedy == "wait" and failure.boundary in AWAY:
                return Failed(name=AWAY[failure.boundary], message=str(error))
            raise
        finally:
            _add_to_labels(counts)
    return Completed(message=f"{artifact.repository}@{artifact.revision}, key {artifact.key}")


def _add_to_labels(counts: dict[str, float]) -> None:
    """Add to the counts of earlier attempts of this flow run."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or not counts:
        return
    with get_client(sync_client=True) as client:
        before = client.read_flow_run(context.flow_run.id).labels
        after = {COUNTS + name: before.get(COUNTS + name, 0) + value for name, value in counts.items()}  # type: ignore[operator]
        client.update_flow_run_labels(context.flow_run.id, after)
