"""Which failures are tried again: those that the next try may not meet."""

from contextlib import suppress

import httpx
import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError
from prefect import flow

from apprentice.envs.wire.server import ServerFailed, SessionLost
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.reporting.errors import BudgetReached, ProcessDied, Stop, TeacherFailed, TeacherUnavailable
from apprentice.tasks.reporting.failures import failure_of


def hub(status: int) -> Exception:
    return HfHubHTTPError("said", response=httpx2.Response(status, request=httpx2.Request("GET", "https://hub")))


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


@pytest.mark.parametrize(
    ("error", "boundary", "remedy"),
    [
        (SessionLost("away for 300 s"), "environment", "wait"),
        (TeacherUnavailable("503 for 600 s"), "teacher", "wait"),
        (TeacherFailed("no valid call"), "teacher", "person"),
        (BudgetReached(), "teacher", "person"),
        (hub(503), "hub", "wait"),
        (hub(500), "hub", "wait"),
        (httpx.ConnectError("refused"), "Prefect's server", "wait"),
        (hub(429), "hub", "wait"),
        (httpx2.ConnectError("refused"), "hub", "wait"),
        (hub(403), "hub", "person"),
        (ServerFailed("exited with code 1"), "server of our own", "retry"),
        (ProcessDied("Signal 9"), "process of a training", "retry"),
        (OutOfMemoryError("CUDA out of memory"), "device", "person"),
        (MemoryError(), "device", "person"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "device", "person"),
        (Stop("nothing was kept", "look at the filter"), "settings", "person"),
        (ZeroDivisionError(), "code", "person"),
    ],
)
def test_a_failure_is_known_by_the_boundary_that_it_crossed(error, boundary, remedy):
    assert failure_of(error)[:2] == (boundary, remedy)


def test_a_failure_that_was_put_into_words_is_known_by_its_cause():
    def fail() -> None:
        try:
            raise SessionLost("away")
        except SessionLost as lost:
            raise Stop("The evaluation lost its environment.", "Run again.") from lost

    with pytest.raises(Stop) as stopped:
        fail()
    assert failure_of(stopped.value).boundary == "environment"


def tried(work: RunContext, *errors: Exception) -> int:
    """How often a stage is begun that meets these errors one after another; then it works."""
    met = list(errors)
    starts: list[None] = []

    @stage(produces=Questions, version=1, title="unsteady")
    def unsteady(context: StageContext, which: str) -> dict[str, int]:
        starts.append(None)
        if met:
            raise met.pop(0)
        return {"collect": 0, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}

    unsteady._task.retry_delay_seconds = [0.01] * 3

    @flow
    def one() -> None:
        unsteady(work, repr(errors))

    with suppress(*(type(error) for error in errors)):
        one()
    return len(starts)


@pytest.mark.long
@pytest.mark.usefixtures("prefect_server")
def test_a_stage_is_tried_again_only_after_what_a_retry_may_mend(work: RunContext):
    assert tried(work, ServerFailed("its port was taken"), ServerFailed("again")) == 3
    assert tried(work, hub(403)) == 1
    assert tried(work, Stop("nothing was kept", "look")) == 1
    assert tried(work, hub(503)) == 1, "its client has waited already"
    assert tried(work, *[ServerFailed("always")] * 9) == 4


@pytest.mark.usefixtures("prefect_server")
def test_retries_are_counted_in_the_run_s_log(work: RunContext):
    tried(work, ServerFailed("once"))
    assert work.log[-1].counts["retries"] == 1
