"""What runs, waits or failed on Prefect's server, and why: `apprentice status`.

In: the server that PREFECT_API_URL names. Out: rows for people and for machines.
"""

from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.types._datetime import now

from apprentice.flows.place import place_of
from apprentice.tasks.announce import in_words

GOES_ON = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED, StateType.PAUSED, StateType.CANCELLING]
WENT_WRONG = [StateType.FAILED, StateType.CRASHED]
WAITS_FOR = {
    "Late": "a worker of pool {pool}: none has taken it",
    "AwaitingConcurrencySlot": "a run of the same recipe to end",
    "AwaitingRetry": "its next try",
    "Scheduled": "its time",
    "Pending": "its process to begin",
}


def status(hours: float) -> dict[str, list[dict[str, str]]]:
    """What goes on, what went wrong within so many hours, and which workers there are.

    Returns: `runs`, `failed`, `workers`, each a list of rows of text.
    """
    with get_client(sync_client=True) as client:
        flows: dict[Any, str] = {}
        going = [_row(client, run, flows) for run in _runs(client, GOES_ON)]
        since = now("UTC") - timedelta(hours=hours)
        wrong = [run for run in _runs(client, WENT_WRONG) if run.end_time is not None and run.end_time > since]
        return {
            "runs": [row for row in going if row],
            "failed": [row for run in wrong if (row := _row(client, run, flows))],
            "workers": [
                {
                    "pool": pool.name,
                    "worker": worker.name,
                    "status": str(worker.status.value if worker.status else "unknown").lower(),
                    "last heard": _ago(worker.last_heartbeat_time),
                }
                for pool in client.read_work_pools()
                for worker in client.read_workers_for_work_pool(pool.name)
            ],
        }


def _runs(client: SyncPrefectClient, states: list[StateType]) -> list[FlowRun]:
    of = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)))
    return client.read_flow_runs(flow_run_filter=of, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=100)


def _row(client: SyncPrefectClient, run: FlowRun, flows: dict[Any, str]) -> dict[str, str]:
    """A run's row; empty for one of the calendar's, whose time is further away than an hour."""
    assert run.state is not None
    expected = run.next_scheduled_start_time or run.expected_start_time
    if run.state.name == "Scheduled" and expected is not None and expected > now("UTC") + timedelta(hours=1):
        return {}
    if run.flow_id not in flows:
        flows[run.flow_id] = client.read_flow(run.flow_id).name
    pool, worker = place_of(run)
    why = WAITS_FOR.get(run.state.name or "", "").format(pool=pool)
    return {
        "run": run.name,
        "flow": flows[run.flow_id],
        "state": run.state.name or "",
        "since": _ago(run.state.timestamp),
        "where": ", ".join(filter(None, (pool, worker))) or "a process of someone's",
        "begun": str(run.run_count),
        "why": " ".join((f"waits for {why}" if why else run.state.message or "").split())[:300],
    }


def _ago(then: Any) -> str:
    return f"{in_words((now('UTC') - then).total_seconds())} ago" if then is not None else "never"
