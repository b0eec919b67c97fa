"""Law 10: an artifact is named by what made it, whole or not there; a stale one is never served."""

import gc
import json
import time
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from apprentice.tasks.artifacts.types import LengthStats, Questions
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage, StageContext, stage
from apprentice.tasks.settings.spec import LengthsSpec

pytestmark = pytest.mark.usefixtures("prefect_server")
runs: list[dict[str, Any]] = []


def toy_stage(version: int = 1) -> Stage[Any, Questions]:
    @stage(produces=Questions, version=version, title="toy")
    def toy(context: StageContext, spec: LengthsSpec, given: LengthStats, seed: int) -> dict[str, Any]:
        runs.append({"spec": spec, "given": given, "seed": seed, "version": version, "ignored": gc.get_freeze_count()})
        (context.out / "data.jsonl").write_text(json.dumps({"margin": spec.margin, "run": len(runs)}) + "\n")
        return {"collect": spec.margin, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}

    return toy


def input_artifact(revision: str = "a" * 40) -> LengthStats:
    counts = dict(p50=1, p95=1, p99=1, longest=1, max_length=8, truncated=0)
    return LengthStats(repository="local/toy-lengths", revision=revision, key="k", **counts)


def run(work: RunContext, version: int = 1, margin: int = 1, revision: str = "a" * 40, seed: int = 0) -> Questions:
    @flow
    def one() -> Questions:
        return toy_stage(version)(work, LengthsSpec(margin=margin), input_artifact(revision), seed)

    return one()


def test_the_same_work_is_done_once_and_its_state_is_cached(work: RunContext):
    before = len(runs)
    first, second = run(work), run(work)
    assert len(runs) == before + 1
    assert first == second
    assert [entry.state for entry in work.log] == ["ran", "cached"]


def test_a_full_garbage_collection_in_a_body_leaves_out_what_is_older(work: RunContext):
    gc.unfreeze()
    run(work)
    assert runs[-1]["ignored"] > 100_000  # what the libraries made when they were imported
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the tests' own set-up left it


def test_under_another_title_it_is_the_same_work(work: RunContext):
    @flow
    def twice() -> list[Questions]:
        given = work, LengthsSpec(margin=1), input_artifact(), 0
        return [toy_stage()(*given), toy_stage().titled("toy with {seed}")(*given)]

    first, second = twice()
    assert first == second
    assert [(entry.name, entry.state, entry.title) for entry in work.log] == [
        ("toy", "ran", "toy"),
        ("toy", "cached", "toy with 0"),
    ]


def test_a_changed_setting_input_or_version_misses_the_cache(work: RunContext):
    changes: list[dict[str, Any]] = [{}, {"margin": 2}, {"revision": "b" * 40}, {"version": 2}, {"seed": 1}]
    assert len({run(work, **change).key for change in changes}) == len(changes)
    assert [entry.state for entry in work.log] == ["ran"] * len(changes)


@pytest.mark.long
def test_an_artifact_that_was_deleted_is_made_again_though_prefect_remembers_it(work: RunContext):
    import shutil

    run(work)
    shutil.rmtree(work.store.root / "datasets")
    again = run(work)
    assert work.log[-1].state == "ran"
    assert work.store.fetch(again).is_dir()


@pytest.mark.long
def test_prefects_own_state_is_cached_on_the_second_run(work: RunContext):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import TaskRunSort

    run(work)
    run(work)
    with get_client(sync_client=True) as client:
        newest, older = client.read_task_runs(sort=TaskRunSort.END_TIME_DESC, limit=2)
    assert (older.state_name, newest.state_name) == ("Completed", "Cached")


def test_a_stage_that_fails_publishes_nothing_and_leaves_no_staging(work: RunContext):
    @stage(produces=Questions, version=1, title="toy")
    def failing(context: StageContext) -> dict[str, Any]:
        (context.out / "half.jsonl").write_text("{}\n")
        raise RuntimeError("midway")

    @flow
    def one() -> None:
        failing(work)

    with pytest.raises(RuntimeError, match="midway"):
        one()
    assert not list((work.store.root / ".staging").iterdir())
    assert not (work.store.root / "datasets").exists()


def test_the_record_says_what_made_the_artifact(work: RunContext):
    made = run(work)
    record = json.loads((work.store.fetch(made) / "artifact.json").read_text())
    assert record["made_by"]["settings"]["spec"] == {"margin": 1, "multiple_of": 8}
    assert record["made_by"]["inputs"] == {"given": "a" * 40}
    assert "torch" in record["made_by"]["packages"]


def test_prefect_is_told_what_was_made_and_from_what(work: RunContext):
    made = run(work, seed=17)
    (event,) = until(lambda: materializations(work.store.address(Questions, made.key), made.revision))
    assert event["payload"]["key"] == made.key
    from_what = [each["prefect.resource.id"] for each in event["related"] if each["prefect.resource.role"] == "asset"]
    assert from_what == [work.store.address(LengthStats, "k")]


def materializations(asset: str, revision: str) -> list[dict[str, Any]]:
    query = {"filter": {"event": {"name": ["prefect.asset.materialization.succeeded"]}, "resource": {"id": [asset]}}}
    with get_client(sync_client=True) as client:
        events = client.request("POST", "/events/filter", json=query).json()["events"]
    return [event for event in events if event["payload"].get("revision") == revision]


def until(holds: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return value
