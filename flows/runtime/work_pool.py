"""Stages on work pools: where one runs, and how it is sent there.

In: a stage's arguments. Out: the artifact's location and counts, when the stage's flow run has ended. All waiting
happens on the cheap side, with retries while Prefect's server is down.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import httpx
import tenacity
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Scheduled
from prefect.types._datetime import now
from pydantic import BaseModel

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.paths import Absolute
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.server import SessionLost
from apprentice.envs.wire.session import wait_until_there
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.hub_client import wait_until_hub_answers
from apprentice.tasks.engine.run import Dispatched, WorkerLocation
from apprentice.tasks.reporting import announce
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


POLL = 1.0
"""Seconds between two polls of a dispatched stage."""
BACKOFF_S = 5.0
"""Seconds before the first retry; doubles with every retry."""
MAX_OUTAGE_RETRIES = 12
"""Retries of a stage that ended because of an outage although the service answers from here."""
LATE_AFTER_S = 60.0
"""Seconds after which to warn that no worker has taken a stage."""


@dataclass
class Pool:
    """The GPU stages' deployments on a work pool."""

    recipe: Recipe
    deployment: str
    """The deployments' name, such as a100; their flows are the trainings and the evaluation."""

    def __call__(self, stage: str, title: str, given: dict[str, Any], key: str) -> Dispatched:
        """Run the stage and wait for it. Raises Stop if it fails in a way that needs a person."""
        arguments = {name: value for name, value in given.items() if name != next(iter(given))}  # without the context
        self._wait_for_environment(arguments)
        run = self._start(stage, title, arguments, key)
        crashes = outages = 0
        while True:
            run = _ended(run)
            assert run.state is not None
            if run.state.type == StateType.COMPLETED:
                break
            if run.state.type == StateType.CANCELLED:
                raise Stop(f"{title} was cancelled.", "Retry this run to continue.")
            if run.state.name in AWAY.values() and outages < MAX_OUTAGE_RETRIES:
                outages += 1
                announce.warn(f"{title} lost a service it needs and saved its progress: {run.state.message}")
                self._wait_for_environment(arguments)
                if self.recipe.store.hub is not None:
                    wait_until_hub_answers(self.recipe.store.hub.patience)
                time.sleep(min(BACKOFF_S * 2 ** (outages - 1), 60.0))  # it answers, but may be full or fail again
            elif run.state.type == StateType.CRASHED and crashes < MAX_CRASHES:
                crashes += 1
                announce.warn(f"{title} crashed ({run.state.message}); scheduled again ({crashes} of {MAX_CRASHES}).")
                time.sleep(min(BACKOFF_S * 2 ** (crashes - 1), 60.0))  # Prefect may report a crash twice
            else:
                raise Stop(f"{title} failed on the work pool: {run.state.message}", "See the log of its flow run.")
            count("retries")
            _schedule_again(run)
        counts = {
            name.removeprefix(COUNTS): float(value)  # type: ignore[arg-type]
            for name, value in run.labels.items()
            if name.startswith(COUNTS)
        }
        counts["device_s"] = run.total_run_time.total_seconds()
        return Dispatched(place_of(run), run.run_count, counts)

    def _start(self, stage: str, title: str, arguments: dict[str, Any], key: str) -> FlowRun:
        """Return the flow run that makes `key` for this parent; a retried parent joins the one that it started before.

        A failed or crashed one is scheduled again. A cancelled one, or one whose artifact was lost since, is not: a
        parent that a person retried starts another one.
        """
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        parent = context.flow_run
        name = f"{stage}/{self.deployment}"
        parameters = {"recipe": self.recipe.as_parameters(Absolute())} | {
            name: value.model_dump(mode="json", context=Absolute()) if isinstance(value, BaseModel) else value
            for name, value in arguments.items()
        }
        joined = f"{parent.id}:{stage}:{key}"
        again = [f"{joined}:{attempt}" for attempt in range(2, parent.run_count + 1)]
        run = self._created(name, title, parameters, stage, joined)
        while again and run.state is not None and run.state.type in (StateType.CANCELLED, StateType.COMPLETED):
            run = self._created(name, title, parameters, stage, again.pop(0))
        if run.state is not None and run.state.is_final() and run.state.type in (StateType.FAILED, StateType.CRASHED):
            _schedule_again(run)
        announce.dispatched(title, self.deployment, str(run.id))
        return run

    def _created(self, name: str, title: str, parameters: dict[str, Any], tag: str, key: str) -> FlowRun:
        """Create the deployment's flow run, or return the one with that idempotency key. Raises Stop."""
        try:
            run = retry_while_away(
                lambda: run_deployment(
                    name,
                    parameters=parameters,
                    scheduled_time=_server_time(),
                    flow_run_name=f"{self.recipe.name}-seed{self.recipe.seed}: {title}",
                    tags=[self.recipe.name, tag],
                    timeout=0,
                    idempotency_key=key,
                )
            )
        except ObjectNotFound:
            raise Stop(
                f"There is no deployment {name} on Prefect's server.",
                f"Create it: list the pool {self.deployment} with stages: true in prefect.yaml (`apprentice init "
                "--production` writes one), and run `apprentice setup --files FOLDER`.",
            ) from None
        assert isinstance(run, FlowRun)
        return read_run(run.id)

    def _wait_for_environment(self, arguments: dict[str, Any]) -> None:
        spec = arguments.get("environment")
        if not isinstance(spec, EnvironmentSpec):
            return
        server = self.recipe.server_of(spec.name)
        for there in [server, *server.parts.values()]:
            if not there.url:
                continue
            try:
                wait_until_there(there, announce.warn)
            except SessionLost as lost:
                raise Stop(
                    f"The environment is out of reach: {lost}.",
                    "Check that its server runs, then retry this run: it resumes.",
                ) from lost


def _ended(run: FlowRun) -> FlowRun:
    """Wait until the flow run is in a final state; warn if no worker takes it."""
    scheduled, warned = time.monotonic(), False
    while True:
        run = read_run(run.id)
        if run.state is not None and run.state.is_final():
            return run
        waiting = run.state is not None and run.state.is_scheduled()
        if waiting and not warned and time.monotonic() - scheduled > LATE_AFTER_S:
            announce.warn(
                f"No worker has taken {run.name} for {LATE_AFTER_S:.0f} s: is a worker of {run.work_pool_name} running?"
            )
            warned = True
        time.sleep(POLL)


@retry_while_away.wraps
def _schedule_again(run: FlowRun) -> None:
    with get_client(sync_client=True) as client:
        state: State[Any] = Scheduled(scheduled_time=_server_time(), message="Resumes from its saved progress.")
        client.set_flow_run_state(run.id, state, force=True)


def _server_time() -> datetime:
    """Return the time on Prefect's server: scheduled by a clock ahead of it, a stage would hold its slot until then."""
    with get_client(sync_client=True) as client:
        said = client.hello().headers.get("date")
    return parsedate_to_datetime(said) if said else now("UTC")
