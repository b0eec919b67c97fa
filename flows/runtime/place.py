"""Where a flow run is, as Prefect's server knows it; the server may be away for a while.

In: a flow run. Out: its work pool and its worker.
"""

from datetime import timedelta
from uuid import UUID

import httpx
import tenacity
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.types._datetime import now

from apprentice.tasks.engine.run import WorkerLocation
from apprentice.tasks.reporting.errors import Stop

MAX_CRASHES = 5
"""Times that a run which died is scheduled again."""
SERVER_AWAY = 900.0
"""Seconds that Prefect's server may be away."""


def current_location() -> WorkerLocation:
    """The place of this flow run. Raises Stop where it died too often: what kills it does not pass by itself."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return WorkerLocation()
    run = read_run(context.flow_run.id)  # the worker labels a run after it was begun
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(run.id)
    recent = now("UTC") - timedelta(days=1)
    died = sum(state.type == StateType.CRASHED and state.timestamp > recent for state in states)
    if died > MAX_CRASHES:
        raise Stop(f"This run died {died} times within a day.", "See its log; retry it when the cause is mended.")
    return place_of(run)


def place_of(run: FlowRun) -> WorkerLocation:
    """The work pool and the worker of a flow run; empty for one that a person started in a process of theirs."""
    return WorkerLocation(run.work_pool_name or "", str(run.labels.get("prefect.worker.name", "")))


def read_run(run_id: UUID) -> FlowRun:
    def read() -> FlowRun:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run_id)

    return retry_while_away(read)


def _is_passing(error: BaseException) -> bool:
    """Whether Prefect's server may answer later."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, httpx.TransportError)


retry_while_away = tenacity.Retrying(
    retry=tenacity.retry_if_exception(_is_passing),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=10.0),
    stop=tenacity.stop_after_delay(SERVER_AWAY),
    reraise=True,
)
"""Calls what asks Prefect's server until it answers."""

AWAY = {
    "environment": "EnvironmentAway",
    "hub": "HubAway",
    "another run": "MadeElsewhere",
    "Prefect's server": "ServerAway",
}
"""The states of a stage that ended because something is away that will be back."""
COUNTS = "apprentice."
"""What the labels begin with under which a flow run keeps what it counted."""
