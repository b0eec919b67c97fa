"""Rollouts that only rewards have outdated are found in the store and rescored; a teacher is asked for nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.echo.env import Environment as Echo
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.lessons import made_or_rescored, to_rescore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance
from apprentice.tasks.artifacts.types import COUNTED, RescoredRollouts, Rollouts
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import rescore
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from tests.odd_server import odd_server
from tests.tasks.test_rescore import bought

TEACHER = TeacherSpec(scripted_error_rate=0.1)


def given(teacher: TeacherSpec = TEACHER, size: int = 12, **settings: Any) -> tuple[Any, ...]:
    task = EnvironmentSpec(name="echo", settings=settings)
    return CollectSpec(), teacher, task, Window(start=0, size=size)


def collected(store: LocalStore, arguments: tuple[Any, ...], made_at: str = "2026-01-01") -> Rollouts:
    """What a collection would have left, without one."""
    settings, inputs = collect.key_contents(arguments, {})
    made_by = {"stage": "collect", "version": collect.version, "settings": settings, "inputs": inputs}
    counts = dict.fromkeys(COUNTED, 0) | {"episodes": 12, "failed": 1}
    with store.staging() as out:
        (out / "rollouts.jsonl").write_bytes(b"".join(record.line() for record in bought()))
        provenance = Provenance(made_at=made_at)
        return store.publish(Rollouts, collect.key(arguments, {}), out, counts, made_by, provenance)


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    return RunContext(LocalStore(tmp_path / "artifacts", "toy"), StandingServers({}, None))


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda version: monkeypatch.setattr(Echo, "version", version)


def test_another_version_of_the_rewards_alone_has_the_newest_rollouts_rescored(run: RunContext, version: Any):
    collected(run.store, given())
    version("1.1")
    newest = collected(run.store, given(), made_at="2026-02-01")
    version("1.2")
    assert to_rescore(run, collect, given(), always=False) == newest


@pytest.mark.parametrize(
    ("now", "arguments"),
    [
        ("2", {}),
        ("1", {}),
        ("1.1", {"words": 4}),
        ("1.1", {"size": 13}),
        ("1.1", {"teacher": TeacherSpec(scripted_error_rate=0.2)}),
    ],
)
def test_whatever_else_changed_is_collected(run: RunContext, version: Any, now: str, arguments: dict[str, Any]):
    collected(run.store, given())
    version(now)
    assert to_rescore(run, collect, given(**arguments), always=False) is None


def test_by_command_other_code_under_the_same_version_is_rescored_too_but_no_other_task(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
):
    found = collected(run.store, given())
    monkeypatch.setattr(Echo, "code_under", classmethod(lambda cls, settings: "other code"))
    assert to_rescore(run, collect, given(), always=False) is None
    assert to_rescore(run, collect, given(), always=True) == found
    with pytest.raises(Stop, match="has no rollouts of this teacher"):
        to_rescore(run, collect, given(words=4), always=True)


def test_what_a_command_has_rescored_once_is_not_bought_by_the_next_run(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
):
    found = collected(run.store, given())
    monkeypatch.setattr(Echo, "code_under", classmethod(lambda cls, settings: "other code"))
    with run.store.staging() as out:
        counts = dict.fromkeys(COUNTED, 0) | {"episodes": 12, "failed": 1, "changed": 1, "left_out": 0}
        run.store.publish(RescoredRollouts, rescore.key((found, given()[2]), {}), out, counts, {"stage": "rescore"})
    assert to_rescore(run, collect, given(), always=False) == found


@pytest.mark.parametrize(("kind", "same"), [("sound", True), ("strict", False)])
def test_without_a_teacher_the_rollouts_are_rescored_and_an_unchanged_rule_leaves_their_revision(
    run: RunContext, version: Any, prefect_server: None, kind: str, same: bool
):
    from prefect import flow

    found = collected(run.store, given())
    version("1.1")
    with odd_server(kind) as url:  # there is no teacher that could be asked
        run.servers = StandingServers({"echo": EnvironmentServer(url=url, sessions=4)}, None)

        @flow
        def rescoring() -> Rollouts:
            return made_or_rescored(run, collect, given(), always=False)

        made = rescoring()
    assert [stage.name for stage in run.log] == ["rescore"]
    assert (made == found) == same
    rows = [json.loads(line) for line in (run.store.fetch(made) / "rollouts.jsonl").read_text().splitlines()]
    assert ({row["reward"] for row in rows} == {0.0, 1.0, None}) != same
    assert {row["environment"] for row in rows} == {"echo 1" if same else "echo 1.1"}
