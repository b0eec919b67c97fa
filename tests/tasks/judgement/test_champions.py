"""The champion is one tag, moved last and in one step; its history stays."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Release
from apprentice.tasks.judgement import champions as champions_module
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting.errors import Stop
from tests.tasks.evaluations import published


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, project="toy")


@pytest.fixture
def champions(store: LocalStore) -> Champions:
    return Champions(store)


def made(store: LocalStore, name: str, promoted: bool = True) -> Release:
    counts = {"weights": f"weights of {name}", "promoted": promoted, "parameters": 1, "stage": "champion"}
    return published(store, Release, name.ljust(20, "0"), {"model.txt": name}, counts)


def promote(champions: Champions, *releases: Release) -> None:
    for release in releases:
        assert champions.promote(release, champions.current())


def test_the_first_promotion_makes_a_champion_and_the_next_one_replaces_it(store: LocalStore, champions: Champions):
    assert champions.current() is None
    a, b = made(store, "a"), made(store, "b")
    promote(champions, a, b)
    assert champions.current() == b
    assert [(change.number, change.how, change.revision) for change in champions.history()] == [
        (1, "promoted", a.revision),
        (2, "promoted", b.revision),
    ]
    assert (store.root / "models/local/toy-model/refs/champion").read_text() == b.revision


def test_a_challenger_that_was_refused_is_kept_and_tagged(store: LocalStore, champions: Champions):
    a, weak = made(store, "a"), made(store, "b", promoted=False)
    promote(champions, a)
    assert not champions.promote(weak, a)
    assert champions.current() == a
    assert store.tagged(Release, f"rejected-{weak.key}") == weak
    assert len(champions.history()) == 1


def test_rolling_back_goes_one_champion_further_back_each_time(store: LocalStore, champions: Champions):
    a, b, c = (made(store, name) for name in "abc")
    promote(champions, a, b, c)
    assert champions.roll_back() == b
    assert champions.roll_back() == a
    with pytest.raises(Stop, match="no earlier champion"):
        champions.roll_back()
    assert champions.current() == a
    assert [change.how for change in champions.history()] == ["promoted"] * 3 + ["rollback"] * 2


def test_rolling_back_to_a_number_that_there_is_not_says_which_there_are(store: LocalStore, champions: Champions):
    promote(champions, made(store, "a"), made(store, "b"))
    with pytest.raises(Stop, match=r"no earlier champion numbered 7.*\n.*1, 2"):
        champions.roll_back(to=7)
    assert champions.roll_back(to=1) == made(store, "a")


def test_what_was_rolled_back_is_known_until_someone_goes_back_to_it(store: LocalStore, champions: Champions):
    a, b = made(store, "a"), made(store, "b")
    promote(champions, a, b)
    champions.roll_back()
    assert champions.was_rolled_back(b.weights)
    assert not champions.was_rolled_back(a.weights)
    champions.roll_back(to=2)
    assert not champions.was_rolled_back(b.weights)


def test_a_model_that_was_compared_with_a_former_champion_is_not_promoted(store: LocalStore, champions: Champions):
    a, b, c = (made(store, name) for name in "abc")
    promote(champions, a)
    promote(champions, b)
    with pytest.raises(Stop, match="The champion changed while this model was compared"):
        champions.promote(c, expecting=a)
    assert champions.current() == b


def settle_in_a_process(root: Path, name: str, ready, go, outcome) -> None:
    store = LocalStore(root, project="toy")
    release = made(store, name)
    expecting = Champions(store).current()
    ready.release()
    go.wait()
    try:
        Champions(store).promote(release, expecting)
        outcome.put(name)
    except Stop:
        outcome.put("stopped")


def test_of_several_processes_that_promote_at_once_one_wins(store: LocalStore, champions: Champions):
    promote(champions, made(store, "a"))
    context = multiprocessing.get_context("fork")
    ready, go, outcome = context.Semaphore(0), context.Event(), context.Queue()
    processes = [
        context.Process(target=settle_in_a_process, args=(store.root, name, ready, go, outcome)) for name in "bcdefg"
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    go.set()
    outcomes = [outcome.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert outcomes.count("stopped") == len(processes) - 1
    winner = next(name for name in outcomes if name != "stopped")
    assert champions.current() == made(store, winner)
    assert len(champions.history()) == 2


class DiesBeforeTheLastStep(LocalStore):
    """A process that is killed after it noted the change and before it moved the tag."""

    def tag(self, artifact, tag: str) -> None:
        if tag == "champion":
            os.kill(os.getpid(), signal.SIGKILL)
        super().tag(artifact, tag)


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_champion_and_the_next_run_finishes(
    store: LocalStore, champions: Champions
):
    a, b = made(store, "a"), made(store, "b")
    promote(champions, a)
    context = multiprocessing.get_context("fork")
    dying = Champions(DiesBeforeTheLastStep(store.root, project="toy"))
    process = context.Process(target=dying.promote, args=(b, a))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert champions.current() == a
    promote(champions, b)
    assert champions.current() == b
    assert [change.number for change in champions.history()] == [1, 2]


def test_a_change_that_was_noted_and_never_made_does_not_enter_the_history(store: LocalStore, champions: Champions):
    a, b, c = (made(store, name) for name in "abc")
    promote(champions, a)
    store.tag(b, "champion-0002-20260101T000000Z-promoted")  # what a killed process leaves
    promote(champions, c)
    assert [change.revision for change in champions.history()] == [a.revision, c.revision]
    assert champions.roll_back() == a


@pytest.mark.parametrize(
    ("error", "in_reach", "is_raised"),
    [
        (Stop("gone", "Run again."), True, True),
        (Stop("gone", "Run again."), False, False),
        (httpx2.ConnectError("no answer"), True, True),
        (httpx2.ConnectError("no answer"), False, False),
        (ZeroDivisionError(), False, True),
    ],
)
def test_a_hub_that_goes_away_while_it_is_asked_leaves_the_champion_for_the_next_run(
    error: Exception, in_reach: bool, is_raised: bool, store: LocalStore, champions: Champions, monkeypatch: Any
):
    warned: list[str] = []

    def settled(*_: Any) -> bool:
        monkeypatch.setattr(type(store), "in_reach", in_reach, raising=False)
        raise error

    monkeypatch.setattr(champions, "_settled", settled)
    monkeypatch.setattr(champions_module.announce, "warn", warned.append)
    release: Any = None
    if is_raised:
        with pytest.raises(type(error)):
            champions.promote(release, None)
        assert not warned
        return
    assert champions.promote(release, None) is False
    assert champions.promote(release, None) is False
    assert warned == ["Who is champion waits for the Hub: run the recipe again when it is back."] * 2
