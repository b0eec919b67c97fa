"""Lists the running, waiting and failed runs on Prefect's server, and why: `apprentice status`.

In: the server in PREFECT_API_URL. Out: rows of text, for the terminal and as JSON.
"""

import socket
from datetime import timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.types._datetime import now
from prefect.utilities.urls import url_for
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from apprentice.flows.runtime.run_guard import PROCESS
from apprentice.flows.runtime.work_pool import place_of
from apprentice.tasks.reporting.announce import console, duration_text, table

STARTED_STATES = [StateType.RUNNING, StateType.PENDING, StateType.PAUSED, StateType.CANCELLING]
WENT_WRONG = [StateType.FAILED, StateType.CRASHED]
WAITS_FOR = {
    "Late": "a worker of pool {pool}: none has taken it",
    "AwaitingConcurrencySlot": "a run of the same recipe to end",
    "AwaitingRetry": "its next retry",
    "Scheduled": "its scheduled time",
    "Pending": "its process to start",
}
Rows = list[dict[str, str]]
SHOWN = ("state", "since", "started by", "where")


def status(hours: float) -> dict[str, Rows]:
    """Return unfinished runs, failures of the last `hours`, and the workers; the newest first.

    Unfinished are those that have started, wait, or are scheduled within the next hour.

    Returns: `runs` of commands and of deployments, `failed`, `workers`, each a list of rows of text.
    """
    with get_client(sync_client=True) as client:
        soon = FlowRunFilterNextScheduledStartTime(before_=now("UTC") + timedelta(hours=1))  # type: ignore[arg-type]
        going = [*_runs(client, STARTED_STATES), *_runs(client, [StateType.SCHEDULED], soon)]
        since = now("UTC") - timedelta(hours=hours)
        wrong = [run for run in _runs(client, WENT_WRONG) if run.end_time is not None and run.end_time > since]
        return {
            "runs": _rows(client, going),
            "failed": _rows(client, wrong),
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


def _runs(
    client: SyncPrefectClient, states: list[StateType], planned: FlowRunFilterNextScheduledStartTime | None = None
) -> list[FlowRun]:
    in_state = FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
    of = FlowRunFilter(state=in_state, next_scheduled_start_time=planned)
    return client.read_flow_runs(flow_run_filter=of, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=100)


def _rows(client: SyncPrefectClient, runs: list[FlowRun]) -> Rows:
    """The newest first."""
    flows = {id_: client.read_flow(id_).name for id_ in {run.flow_id for run in runs}}
    begun = sorted(runs, key=lambda run: run.start_time or run.expected_start_time or run.created or now("UTC"))
    return [_row(run, flows[run.flow_id]) for run in reversed(begun)]


def _row(run: FlowRun, flow: str) -> dict[str, str]:
    assert run.state is not None
    pool, worker = place_of(run)
    why = WAITS_FOR.get(run.state.name or "", "").format(pool=pool)
    return {
        "run": run.name,
        "flow": flow,
        "state": run.state.name or "",
        "since": _ago(run.state.timestamp),
        "started by": "a command" if run.deployment_id is None else "a deployment",
        "where": ", ".join(filter(None, (pool, worker))) or _process_of(run),
        "begun": str(run.run_count),
        "why": " ".join((f"waits for {why}" if why else run.state.message or "").split())[:300],
        "url": url_for(run) or "",
    }


def _process_of(run: FlowRun) -> str:
    host, _, number = next((tag for tag in run.tags if PROCESS.fullmatch(tag)), "").rpartition(":")
    here = "this machine" if host == socket.gethostname() else host
    return f"{here}, process {number}" if host else "a process that began before its name was kept"


def _ago(then: Any) -> str:
    return f"{duration_text((now('UTC') - then).total_seconds())} ago" if then is not None else "never"


def show(found: dict[str, Rows], hours: float) -> None:
    _show_runs("Runs", found["runs"])
    _show_runs(f"Failed in {hours:g} h", found["failed"])
    if found["workers"]:
        table("workers", "Workers", found["workers"])
    else:
        console.print("Workers: none", style="bold")


def _show_runs(title: str, rows: Rows) -> None:
    if not rows:
        console.print(f"{title}: none", style="bold")
        return
    console.print(title, style="bold")
    width = max(len(row["run"]) for row in rows)
    widths = [max(len(row[name]) for row in rows) for name in SHOWN[:3]]
    beside = console.width - 2 - sum(widths) - 8
    is_narrow = width + 16 > beside  # then a run's name gets its own line
    for row in rows:
        name = Text(row["run"], style=f"link {row['url']}" if row["url"] else "")
        line = Table.grid(padding=(0, 2, 0, 0))
        if is_narrow:
            console.print(Padding(name, (0, 0, 0, 2)))
        else:
            line.add_column(width=width)
        for each in widths:
            line.add_column(width=each)
        line.add_column(overflow="fold")
        line.add_row(*([] if is_narrow else [name]), *(row[name] for name in SHOWN))
        console.print(Padding(line, (0, 0, 0, 4 if is_narrow else 2)))
        if row["why"]:
            console.print(Padding(Text(row["why"], style="dim"), (0, 0, 0, 4)))
