"""Reads where a flow run is running from Prefect's server, with retries while that server is down.

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
"""How often a crashed run is scheduled again."""
SERVER_AWAY = 900.0
"""Seconds that Prefect's server may be unreachable."""


def current_location() -> WorkerLocation:
    """Return the work pool and worker of this flow run. Raises Stop if it crashed too often."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return WorkerLocation()
    run = read_run(context.flow_run.id)  # the worker labels a run after it started
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(run.id)
    recent = now("UTC") - timedelta(days=1)
    crashes = sum(state.type == StateType.CRASHED and state.timestamp > recent for state in states)
    if crashes > MAX_CRASHES:
        raise Stop(f"This run crashed {crashes} times within a day.", "See its log, fix the cause and retry it.")
    return place_of(run)


def place_of(run: FlowRun) -> WorkerLocation:
    """Return the work pool and the worker of a flow run; empty if it was started without a worker."""
    return WorkerLocation(run.work_pool_name or "", str(run.labels.get("prefect.worker.name", "")))


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, httpx.TransportError)


retry_while_away = tenacity.Retrying(
    retry=tenacity.retry_if_exception(_is_passing),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=10.0),
    stop=tenacity.stop_after_delay(SERVER_AWAY),
    reraise=True,
)
"""Retries a call while Prefect's server is unreachable."""


@retry_while_away.wraps
def read_run(run_id: UUID) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id)


AWAY = {
    "environment": "EnvironmentAway",
    "hub": "HubAway",
    "another run": "MadeElsewhere",
    "Prefect's server": "ServerAway",
}
"""State names of a stage that ended because of a temporary outage, by what failed."""
COUNTS = "apprentice."
"""Prefix of the labels in which a flow run stores its counts."""
