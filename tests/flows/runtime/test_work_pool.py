"""A stage on another pool: begun once, scheduled again when that may help, and left alone when it may not.

The server is Prefect's own; the test plays the worker, which is all that the dispatcher sees of one.
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow, states
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import flow_runs
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow_sync
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, Scheduled
from prefect.types._datetime import now

from apprentice.envs.wire.server import SessionLost
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime import work_pool
from apprentice.flows.runtime.work_pool import AWAY, Pool, _is_passing, current_location
from apprentice.flows.stages import sft_stage
from apprentice.tasks.artifacts.types import SftCheckpoint
from apprentice.tasks.engine.run import Dispatched, WorkerLocation
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.sft_settings import SftSpec
from tests.restartable import RestartableServer

pytestmark = pytest.mark.usefixtures("prefect_server", "deployed")
TOY = Path(__file__).parents[3] / "deployments" / "recipes" / "toy.yaml"


@stage(produces=SftCheckpoint, version=1, title="SFT", gpu=True)
def sft(context: StageContext, spec: SftSpec, environment: Any) -> dict[str, Any]:
    raise AssertionError("it runs elsewhere")


@pytest.fixture
def deployed(prefect_server) -> None:
    """A deployment sft/a100 on a pool without a worker."""
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="a100", type="process"), overwrite=True)
        flow_id = client.create_flow(sft_stage)
        client.create_deployment(flow_id, "a100", work_pool_name="a100", enforce_parameter_schema=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_pool, "POLL", 0.05)
    monkeypatch.setattr(work_pool, "BACKOFF_S", 0.01)


class Worker(threading.Thread):
    """Takes every scheduled run of the deployment and ends it in the next state of the script."""

    def __init__(self, *ends: State | Callable[[], State]):
        super().__init__(daemon=True)
        self._ends = list(ends)
        self.taken: list[FlowRun] = []
        self.over = threading.Event()

    def run(self) -> None:
        with get_client(sync_client=True) as client:
            while self._ends and not self.over.wait(0.05):
                for run in client.read_flow_runs():
                    if run.work_pool_name == "a100" and run.state is not None and run.state.is_scheduled():
                        self.taken.append(run)
                        client.update_flow_run_labels(run.id, {"prefect.worker.name": "gpu-1"})
                        client.set_flow_run_state(run.id, Running(), force=True)
                        end = self._ends.pop(0)
                        client.set_flow_run_state(run.id, end() if callable(end) else end, force=True)

    def __enter__(self) -> "Worker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def recipe(**env: Any) -> Recipe:
    return load_recipe(TOY, [f"server.{name}={value}" for name, value in env.items()])


def dispatched(of: Recipe, key: str) -> Dispatched:
    """Dispatches the stage from within a flow."""

    @flow(name="parent")
    def parent() -> Dispatched:
        work_pool = Pool(of, "a100")
        given = {"bench": None, "spec": SftSpec(), "environment": of.environment}
        return work_pool("sft", "SFT", given, key)

    return parent()


def test_a_stage_runs_once_and_says_where_it_ran():
    with Worker(Completed()) as worker:
        done = dispatched(recipe(), "k1")
    assert (done.location.pool, done.location.worker, len(worker.taken)) == ("a100", "gpu-1", 1)
    assert worker.taken[0].parameters["spec"] == SftSpec().model_dump(mode="json")
    assert worker.taken[0].name == "toy-seed0: SFT"
    assert worker.taken[0].parent_task_run_id is not None


def test_a_stage_that_died_is_scheduled_again_as_the_same_run():
    with Worker(Crashed(message="killed"), Crashed(message="killed"), Completed()) as worker:
        dispatched(recipe(), "k2")
    assert len(worker.taken) == 3
    assert len({run.id for run in worker.taken}) == 1


def test_a_stage_does_not_wait_for_the_clock_of_who_dispatched_it(monkeypatch: pytest.MonkeyPatch):
    def ahead(zone: str = "UTC") -> datetime:
        return now(zone) + timedelta(seconds=120)

    for module in (flow_runs, states, work_pool):
        monkeypatch.setattr(module, "now", ahead)
    with Worker(Crashed(message="killed"), Completed()) as worker:
        dispatched(recipe(), "k12")
    times = [each.state and each.state.state_details.scheduled_time for each in worker.taken]
    assert len(times) == 2
    assert all(at is not None and at <= now("UTC") for at in times), times


@pytest.mark.long
def test_a_stage_that_always_dies_is_left_to_a_person():
    crashes = [Crashed(message="killed by the kernel")] * 9
    with Worker(*crashes, Completed()) as worker, pytest.raises(Stop, match="by the kernel"):
        dispatched(recipe(), "k3")
    assert len(worker.taken) == work_pool.MAX_CRASHES + 1


def test_a_failure_that_a_second_try_cannot_mend_is_not_tried_again():
    with Worker(Failed(message="CUDA out of memory")) as worker, pytest.raises(Stop, match="out of memory"):
        dispatched(recipe(), "k4")
    assert len(worker.taken) == 1


@pytest.mark.long
def test_a_cancelled_stage_is_not_scheduled_again():
    with Worker(Cancelled()) as worker, pytest.raises(Stop, match="was cancelled"):
        dispatched(recipe(), "k5")
    assert len(worker.taken) == 1


@pytest.mark.long
def test_an_environment_that_is_away_is_waited_for_before_the_stage_is_begun(monkeypatch: pytest.MonkeyPatch):
    environment = RestartableServer()
    environment.kill()
    warned: list[str] = []

    def warn(text: str) -> None:
        if not warned:  # it comes back once somebody waits for it
            threading.Timer(0.1, environment.start).start()
        warned.append(text)

    there: list[bool] = []

    def start() -> State:
        there.append(environment.process.poll() is None)
        return Completed()

    monkeypatch.setattr(work_pool.announce, "warn", warn)
    with Worker(start):
        dispatched(recipe(url=environment.url, patience=60), "k6")
    environment.kill()
    assert there == [True], warned


@pytest.mark.long
def test_a_stage_that_lost_its_environment_is_scheduled_again_once_that_is_back():
    environment = RestartableServer()
    back: list[float] = []

    def lose_it() -> State:
        environment.kill()
        threading.Timer(1.5, lambda: (back.append(time.monotonic()), environment.start())).start()
        return Failed(name=AWAY["environment"], message="lost after step 4")

    again: list[float] = []
    with Worker(lose_it, lambda: (again.append(time.monotonic()), Completed())[1]):
        dispatched(recipe(url=environment.url, patience=60), "k7")
    environment.kill()
    assert again[0] > back[0]


@pytest.mark.long
def test_an_environment_that_stays_away_ends_the_run_with_words_that_say_so():
    environment = RestartableServer()
    environment.kill()
    with pytest.raises(Stop, match=r"out of reach.*(?s:.)*retry this run"):
        dispatched(recipe(url=environment.url, patience=2), "k8")


@pytest.mark.long
def test_a_service_that_was_away_costs_retries_up_to_a_limit_and_is_not_waited_for_without_an_address(
    monkeypatch: pytest.MonkeyPatch,
):
    warned: list[str] = []
    monkeypatch.setattr(work_pool.announce, "warn", warned.append)
    monkeypatch.setattr(work_pool, "MAX_OUTAGE_RETRIES", 2)
    away = [Failed(name=name, message=f"lost {n}") for n, name in enumerate(AWAY.values())]
    with Worker(*away[:2], Completed()) as worker:
        dispatched(recipe(), "k13")
    assert len(worker.taken) == 3
    assert [each.rpartition(": ")[2] for each in warned] == ["lost 0", "lost 1"]
    with Worker(*away) as worker, pytest.raises(Stop, match="SFT failed on the work pool: lost 2"):
        dispatched(recipe(), "k14")


def test_what_a_stage_counted_comes_back_with_its_time_and_its_attempts(monkeypatch: pytest.MonkeyPatch):
    def count(run: FlowRun) -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(run.id, {"apprentice.rows": 3, "other": 4})

    with Worker(Crashed(message="killed"), lambda: (count(worker.taken[-1]), Completed())[1]) as worker:
        done = dispatched(recipe(), "k15")
    assert done.counts.pop("device_s") > 0
    assert done.counts == {"rows": 3.0}
    assert done.attempts == 2


def test_a_stage_that_no_worker_takes_is_warned_of_once(monkeypatch: pytest.MonkeyPatch):
    warned: list[str] = []
    late = Worker(Completed())
    unwarned = threading.Timer(60.0, late.start)

    def warn(text: str) -> None:
        warned.append(text)
        unwarned.cancel()
        if len(warned) == 1:  # then it could warn some more before a worker comes
            threading.Timer(0.5, late.start).start()

    monkeypatch.setattr(work_pool.announce, "warn", warn)
    monkeypatch.setattr(work_pool, "LATE_AFTER_S", 0.2)
    unwarned.start()
    dispatched(recipe(), "k16")
    late.join()
    assert warned == ["No worker has taken toy-seed0: SFT for 0 s: is a worker of a100 running?"]


@pytest.mark.parametrize("environment", ["echo", None])
def test_an_environment_out_of_reach_ends_the_run_and_a_stage_without_one_waits_for_none(
    monkeypatch: pytest.MonkeyPatch, environment: str | None
):
    def lost(*_: object) -> None:
        raise SessionLost("no answer")

    monkeypatch.setattr(work_pool, "wait_until_there", lost)
    pool = Pool(recipe(url="http://127.0.0.1:9"), "a100")
    if environment is None:
        pool._wait_for_environment({"environment": None})
        Pool(recipe(), "a100")._wait_for_environment({"environment": recipe().environment})
        return
    with pytest.raises(Stop, match=r"out of reach: no answer.*(?s:.)*retry this run"):
        pool._wait_for_environment({"environment": recipe().environment})


def test_a_run_that_crashed_too_often_within_a_day_is_left_to_a_person(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(work_pool, "MAX_CRASHES", 1)
    found: list[WorkerLocation] = []

    @flow(name="sft")
    def body() -> None:
        found.append(current_location())

    body()
    assert found.pop() == WorkerLocation("", ""), "no deployment's"
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(client.read_deployment_by_name("sft/a100").id)
        client.update_flow_run_labels(run.id, {"prefect.worker.name": "gpu-1"})

        def crashed() -> FlowRun:
            client.set_flow_run_state(run.id, Crashed(), force=True)
            client.set_flow_run_state(run.id, Scheduled(), force=True)
            return client.read_flow_run(run.id)

        run_flow_sync(body, flow_run=crashed())
        assert found == [WorkerLocation("a100", "gpu-1")]
        with pytest.raises(Stop, match="This run crashed 2 times within a day"):
            run_flow_sync(body, flow_run=crashed())


def test_a_missing_deployment_is_named_with_the_command_that_makes_it():
    @flow
    def parent() -> None:
        given = {"bench": None, "spec": SftSpec(), "environment": recipe().environment}
        Pool(recipe(), "h100")("sft", "SFT", given, "k9")

    with pytest.raises(Stop, match=r"no deployment sft/h100(?s:.)*list the pool h100 with stages: true"):
        parent()


@pytest.mark.long
def test_a_retried_parent_joins_what_it_began_and_lets_a_failed_stage_go_on():
    ends = [Failed(message="a bug, mended since"), Completed()]
    attempts: list[str] = []

    @flow(name="parent", retries=1)
    def parent() -> None:
        attempts.append("once")
        given = {"bench": None, "spec": SftSpec(), "environment": recipe().environment}
        Pool(recipe(), "a100")("sft", "SFT", given, "k10")

    with Worker(*ends) as worker:
        parent()
    assert len(attempts) == 2
    assert len({run.id for run in worker.taken}) == 1


@pytest.mark.long
def test_a_retried_parent_begins_a_cancelled_stage_as_a_new_run():
    @flow(name="parent", retries=1)
    def parent() -> None:
        given = {"bench": None, "spec": SftSpec(), "environment": recipe().environment}
        Pool(recipe(), "a100")("sft", "SFT", given, "k11")

    with Worker(Cancelled(), Completed()) as worker:
        parent()
    assert len({run.id for run in worker.taken}) == 2


def test_every_stage_that_wants_a_gpu_is_a_flow_that_takes_its_arguments():
    import inspect

    from apprentice.flows.stages import STAGES
    from apprentice.tasks.evaluate import evaluate
    from apprentice.tasks.grpo import grpo
    from apprentice.tasks.sft import sft

    for each in (sft, grpo, evaluate):
        assert each.gpu
        taken = list(inspect.signature(STAGES[each.name].fn).parameters)
        assert taken == ["recipe", *list(inspect.signature(each.body).parameters)[1:]]


@pytest.mark.parametrize(("status", "passes"), [(500, True), (503, True), (429, True), (499, False), (404, False)])
def test_prefects_server_is_asked_again_where_it_may_answer_later(status: int, passes: bool):
    request = httpx.Request("GET", "http://prefect")
    error = PrefectHTTPStatusError("said", request=request, response=httpx.Response(status, request=request))
    assert _is_passing(error) is passes


def test_a_server_that_is_not_there_is_asked_again_and_a_mistake_is_not():
    assert _is_passing(httpx.ConnectError("refused"))
    assert not _is_passing(ValueError("no"))
