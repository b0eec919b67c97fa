"""The GPU stages as separate flows, for deployments on the GPU work pool.

In: the recipe, which names servers and store, and the stage's arguments, with artifacts as references.
Out: the artifact in the store.
A stage that loses its environment or the Hub saves its progress, frees the device and fails in a state that names the
cause; the flow that dispatched it waits and schedules it again.
"""

from typing import Annotated, Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed, State
from pydantic import Field

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.metrics import counted
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.flows.runtime.work_pool import AWAY, COUNTS, current_location
from apprentice.tasks.artifacts.types import (
    BaseStudent,
    GrpoCheckpoint,
    KeptRollouts,
    LengthStats,
    Questions,
    Release,
    SftCheckpoint,
)
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.grpo import grpo
from apprentice.tasks.reporting.failures import failure_of
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import GrpoSpec, SftSpec
from apprentice.tasks.sft import sft
from apprentice.tasks.training.reporters import check_reporters

AnyCheckpoint = Annotated[BaseStudent | SftCheckpoint | GrpoCheckpoint | Release, Field(discriminator="stage")]


@flow(name=sft.name, result_serializer="json")
def sft_stage(
    recipe: Recipe, spec: SftSpec, student: AnyCheckpoint, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> State:
    """Supervised fine-tuning on the kept rollouts."""
    return _made(recipe, sft, spec, student, kept, lengths, seed)


@flow(name=grpo.name, result_serializer="json")
def grpo_stage(
    recipe: Recipe,
    spec: GrpoSpec,
    checkpoint: AnyCheckpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> State:
    """GRPO in the recipe's environment, or in that of the chosen difficulty level."""
    return _made(recipe, grpo, spec, checkpoint, environment, questions, seed)


@flow(name=evaluate.name, result_serializer="json")
def evaluate_stage(
    recipe: Recipe,
    spec: EvaluateSpec,
    checkpoint: AnyCheckpoint,
    environment: EnvironmentSpec,
    questions: Questions,
    seed: int,
) -> State:
    """Evaluate one model on held-out questions."""
    return _made(recipe, evaluate, spec, checkpoint, environment, questions, seed)


STAGES = {each.name: each for each in (sft_stage, grpo_stage, evaluate_stage)}
"""The flows by stage name."""


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
