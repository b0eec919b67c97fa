"""`apprentice status` says what runs, waits or failed, and why."""

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Failed, Late, Running, State

from apprentice.flows.status import status

pytestmark = pytest.mark.usefixtures("prefect_server")


def begun(name: str, state: State) -> None:
    @flow(name="toy")
    def toy() -> None: ...

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(toy, name=name)
        client.set_flow_run_state(run.id, state, force=True)


def test_what_runs_what_waits_and_what_failed_is_told_with_its_reason():
    begun("words-seed0", Running())
    begun("words-seed0: GRPO", Late())
    begun("words-seed1", Failed(message="The environment is out of reach:\n it was away for 300 s."))
    found = status(hours=1.0)
    runs = {row["run"]: row for row in found["runs"]}
    assert runs["words-seed0"]["state"] == "Running"
    assert "none has taken it" in runs["words-seed0: GRPO"]["why"]
    (failed,) = [row for row in found["failed"] if row["run"] == "words-seed1"]
    assert failed["why"] == "The environment is out of reach: it was away for 300 s."


def test_workers_are_listed_with_the_time_they_were_last_heard():
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="a100", type="process"), overwrite=True)
        client.send_worker_heartbeat("a100", "w", heartbeat_interval_seconds=30)
    (worker,) = [row for row in status(hours=1.0)["workers"] if row["worker"] == "w"]
    assert worker == {"pool": "a100", "worker": "w", "status": "online", "last heard": worker["last heard"]}
    assert worker["last heard"].startswith("about")
