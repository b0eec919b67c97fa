"""`apprentice status` says what runs, waits or failed, and why."""

import socket
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Failed, Late, Running, Scheduled, State
from prefect.types._datetime import now
from rich.text import Text

from apprentice.flows.status import show, status
from apprentice.tasks.reporting.announce import console

pytestmark = pytest.mark.usefixtures("prefect_server")


@flow(name="toy")
def toy() -> None: ...


def start_run(name: str, state: State, deployment: UUID | None = None, tags: Iterable[str] = ()) -> None:
    with get_client(sync_client=True) as client:
        if deployment is None:
            run = client.create_flow_run(toy, name=name, tags=tags)
        else:
            run = client.create_flow_run_from_deployment(deployment, name=name)
        client.set_flow_run_state(run.id, state, force=True)


@pytest.fixture
def deployment() -> UUID:
    with get_client(sync_client=True) as client:
        return client.create_deployment(client.create_flow(toy), name="toy")


def test_what_runs_what_waits_and_what_failed_is_told_with_its_reason(deployment: UUID):
    start_run("words-seed0", Running(), deployment)
    start_run("words-seed0: GRPO", Late(), deployment)
    start_run("words-seed1", Failed(message="The environment is out of reach:\n it was away for 300 s."))
    found = status(hours=1.0)
    runs = {row["run"]: row for row in found["runs"]}
    assert runs["words-seed0"]["state"] == "Running"
    assert "none has taken it" in runs["words-seed0: GRPO"]["why"]
    (failed,) = [row for row in found["failed"] if row["run"] == "words-seed1"]
    assert failed["why"] == "The environment is out of reach: it was away for 300 s."


@pytest.mark.parametrize(("host", "shown"), [("ada", "ada"), (socket.gethostname(), "this machine")])
def test_runs_of_commands_and_of_deployments_are_listed_together_with_who_started_them(
    deployment: UUID, host: str, shown: str
):
    start_run(f"by hand on {host}", Running(), tags=["local", f"{host}:4242"])
    start_run("deployed", Running(), deployment)
    runs = {row["run"]: row for row in status(hours=1.0)["runs"]}
    assert runs[f"by hand on {host}"]["where"] == f"{shown}, process 4242"
    assert (runs[f"by hand on {host}"]["started by"], runs["deployed"]["started by"]) == ("a command", "a deployment")


def test_the_newest_run_comes_first():
    start_run("older", Running())
    start_run("newer", Running())
    names = [row["run"] for row in status(hours=1.0)["runs"]]
    assert names.index("newer") < names.index("older")


def test_what_a_calendar_plans_for_later_crowds_nothing_out(deployment: UUID):
    start_run("now", Running())
    start_run("tomorrow", Scheduled(scheduled_time=now("UTC") + timedelta(days=1)), deployment)
    found = status(hours=1.0)
    assert "now" in [row["run"] for row in found["runs"]]
    assert "tomorrow" not in [row["run"] for row in found["runs"]]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", ["toy-seed0", "a-recipe-with-a-rather-long-name-for-its-kind-seed12345: Evaluation"])
def test_it_is_readable_at_80_columns_and_names_are_links(name: str, width: int, monkeypatch: pytest.MonkeyPatch):
    start_run(name, Failed(message="The environment is out of reach: " + "it was away, " * 20))
    monkeypatch.setattr(console, "_width", width)
    with console.capture() as shown:
        show(status(hours=1.0), 1.0)
    lines = [line.rstrip() for line in Text.from_ansi(shown.get()).plain.splitlines()]
    assert max(map(len, lines)) <= width
    assert any(name in line for line in lines), "the name is cut or folded"
    assert any("Failed" in line and "ago" in line for line in lines), "state and time stand not on one line"
    assert status(hours=1.0)["failed"][0]["url"].startswith("http")


def test_workers_are_listed_with_the_time_they_were_last_heard():
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="a100", type="process"), overwrite=True)
        client.send_worker_heartbeat("a100", "w", heartbeat_interval_seconds=30)
    (worker,) = [row for row in status(hours=1.0)["workers"] if row["worker"] == "w"]
    assert worker == {"pool": "a100", "worker": "w", "status": "online", "last heard": worker["last heard"]}
    assert worker["last heard"].startswith("about")


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_are_a_table_or_there_are_none(workers: int):
    rows = [
        {"pool": "a100", "worker": f"w{n}", "status": "online", "last heard": "about 3 s ago"} for n in range(workers)
    ]
    with console.capture() as captured:
        show({"runs": [], "failed": [], "workers": rows}, 2.5)
    *titles, last = [line.rstrip() for line in captured.get().splitlines()]
    assert titles[:2] == ["Runs: none", "Failed in 2.5 h: none"]
    if not workers:
        assert last == "Workers: none"
        return
    assert titles[2] == "Workers"
    assert titles[3].split() == ["pool", "worker", "status", "last", "heard"]
    assert [line.split() for line in (*titles[4:], last)] == [
        ["a100", f"w{n}", "online", "about", "3", "s", "ago"] for n in range(workers)
    ]
