"""Runs a GPU stage as a deployment of another work pool, from the side that costs little: nothing expensive waits.

In: a stage whose artifact is missing, and its arguments. Out: where it ran; its artifact lies in the store.
Before a stage is sent off its environment is looked for from here. If the environment goes away in mid-stage, the stage
keeps what it has and ends, so that its device is free; here one waits for the environment, and schedules the same flow
run again, which goes on from its checkpoint. A run that died (its worker, its machine) is scheduled again, too; one
that a person cancelled is not.
"""

import time
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled
from pydantic import BaseModel

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.breaker import SessionLost
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import wait_until_there
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.place import AWAY, COUNTS, MAX_CRASHES, place_of, read_run, retry_while_away
from apprentice.tasks.artifacts.hub_client import wait_until_hub_answers
from apprentice.tasks.engine.run import Dispatched
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

POLL = 1.0
"""Seconds between two looks at a stage that runs elsewhere."""
BACKOFF_S = 5.0
"""Seconds before the first time; twice as many before the next."""
MAX_OUTAGE_RETRIES = 12
"""Times that a stage is scheduled again which ended for want of something that answers when it is asked from here."""
LATE_AFTER_S = 60.0
"""Seconds after which it is said that no worker takes a stage."""


class Pool:
    """The GPU stages' deployments on a work pool.

    Args:
        deployment: Their name, such as a100: the stages are the flows sft, grpo and evaluate.
    """

    def __init__(self, recipe: Recipe, deployment: str):
        self._recipe = recipe
        self._deployment = deployment

    def __call__(self, stage: str, title: str, given: dict[str, Any], key: str) -> Dispatched:
        """Returns when the stage is done. Raises Stop when only a person can mend what stopped it."""
        arguments = {name: value for name, value in given.items() if name != next(iter(given))}  # without the bench
        self._wait_for_environment(arguments)
        run = self._begun(stage, title, arguments, key)
        deaths = rounds = 0
        while True:
            run = _ended(run)
            assert run.state is not None
            if run.state.type == StateType.COMPLETED:
                break
            if run.state.type == StateType.CANCELLED:
                raise Stop(f"{title} was cancelled.", "Retry this run when it is to go on.")
            if run.state.name in AWAY.values() and rounds < MAX_OUTAGE_RETRIES:
                rounds += 1
                announce.warn(f"{title} ended without what it needs, its work is kept: {run.state.message}")
                self._wait_for_environment(arguments)
                self._wait_for_hub()
                time.sleep(min(BACKOFF_S * 2 ** (rounds - 1), 60.0))  # it answers, and yet may be full, or fail again
            elif run.state.type == StateType.CRASHED and deaths < MAX_CRASHES:
                deaths += 1
                announce.warn(f"{title} died ({run.state.message}); it is scheduled again ({deaths} of {MAX_CRASHES}).")
                time.sleep(min(BACKOFF_S * 2 ** (deaths - 1), 60.0))  # a crash is reported twice
            else:
                raise Stop(f"{title} failed on the pool: {run.state.message}", "See the log of its flow run.")
            count("retries")
            _schedule_again(run)
        counts = {
            name.removeprefix(COUNTS): float(value)  # type: ignore[arg-type]
            for name, value in run.labels.items()
            if name.startswith(COUNTS)
        }
        counts["device_s"] = run.total_run_time.total_seconds()
        return Dispatched(place_of(run), run.run_count, counts)

    def _begun(self, stage: str, title: str, arguments: dict[str, Any], key: str) -> FlowRun:
        """The flow run that makes `key` for this parent: a retried parent joins the one that it began before.

        One that ended without success goes on; a cancelled one does not, nor one whose artifact was lost since: a
        parent that a person retried begins another one.
        """
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        parent = context.flow_run
        name = f"{stage}/{self._deployment}"
        parameters = {"recipe": self._recipe.as_parameters()} | {
            name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            for name, value in arguments.items()
        }
        joined = f"{parent.id}:{stage}:{key}"
        again = [f"{joined}:{attempt}" for attempt in range(2, parent.run_count + 1)]
        run = self._created(name, title, parameters, stage, joined)
        while again and run.state is not None and run.state.type in (StateType.CANCELLED, StateType.COMPLETED):
            run = self._created(name, title, parameters, stage, again.pop(0))
        if run.state is not None and run.state.is_final() and run.state.type in (StateType.FAILED, StateType.CRASHED):
            _schedule_again(run)
        announce.dispatched(title, self._deployment, str(run.id))
        return run

    def _created(self, name: str, title: str, parameters: dict[str, Any], tag: str, key: str) -> FlowRun:
        """The deployment's flow run of that idempotency key, made now or before. Raises Stop."""
        try:
            run = retry_while_away(
                lambda: run_deployment(
                    name,
                    parameters=parameters,
                    flow_run_name=f"{self._recipe.name}-seed{self._recipe.seed}: {title}",
                    tags=[self._recipe.name, tag],
                    timeout=0,
                    idempotency_key=key,
                )
            )
        except ObjectNotFound:
            raise Stop(
                f"There is no deployment {name} on Prefect's server.",
                "Create it: prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml",
            ) from None
        assert isinstance(run, FlowRun)
        return read_run(run.id)

    def _wait_for_environment(self, arguments: dict[str, Any]) -> None:
        """Returns when the stage's environment answers. Raises Stop."""
        spec = arguments.get("environment")
        if not isinstance(spec, EnvironmentSpec):
            return
        server = self._recipe.server_of(spec.name)
        for there in [server, *server.parts.values()]:
            if not there.url:
                continue
            try:
                wait_until_there(there, announce.warn)
            except SessionLost as lost:
                raise Stop(
                    f"The environment is out of reach: {lost}.",
                    "See that its server runs, then retry this run: it goes on from there.",
                ) from lost

    def _wait_for_hub(self) -> None:
        """Returns when the Hub answers, where the store is there. Raises Stop."""
        if self._recipe.store.hub is not None:
            wait_until_hub_answers(self._recipe.store.hub.patience)


def _ended(run: FlowRun) -> FlowRun:
    """The flow run once it is in a final state; says when no worker takes it."""
    scheduled, told = time.monotonic(), False
    while True:
        run = read_run(run.id)
        if run.state is not None and run.state.is_final():
            return run
        waiting = run.state is not None and run.state.is_scheduled()
        if waiting and not told and time.monotonic() - scheduled > LATE_AFTER_S:
            announce.warn(
                f"No worker has taken {run.name} for {LATE_AFTER_S:.0f} s: is one of {run.work_pool_name} running?"
            )
            told = True
        time.sleep(POLL)


def _schedule_again(run: FlowRun) -> None:
    """The same flow run, in whatever state it ended, to be run again now."""

    def set_state() -> None:
        with get_client(sync_client=True) as client:
            state: State[Any] = Scheduled(message="Goes on from what it kept.")
            client.set_flow_run_state(run.id, state, force=True)

    retry_while_away(set_state)
