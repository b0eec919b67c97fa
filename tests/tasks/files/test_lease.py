"""One process at a time has a lease, whatever flock does; a killed or silent one is succeeded, and writes no more."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import flock
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.episodes.journal import Journal
from apprentice.tasks.files import lease
from apprentice.tasks.files.lease import Lease, held
from apprentice.tasks.reporting.errors import MadeElsewhere, Stop
from tests.tasks.evaluations import episode

STALE = 0.4
COUNTS = {"collect": 0, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease whose time runs out soon."""
    monkeypatch.setattr(lease, "PERIOD", 0.05)
    monkeypatch.setattr(lease, "STALE", STALE)
    monkeypatch.setattr(lease, "_silent", {})


@pytest.fixture(params=["works", "says yes to everybody", "ENOLCK", "ENOSYS", "EOPNOTSUPP", "EINVAL", "EIO"])
def any_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file system's flock."""
    error = getattr(errno, request.param, 0)

    def says(_file: Any, _how: int) -> None:
        if error:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(lease, "STALE", 30.0)
    if request.param != "works":
        monkeypatch.setattr(lease.fcntl, "flock", says)
    return request.param


def left(folder: Path) -> list[str]:
    """What is left of leases."""
    return sorted(each.name for each in folder.iterdir() if ".lease" in each.name)


def test_the_second_one_waits_and_then_has_it(any_flock: str, tmp_path: Path):
    order, busy = [], threading.Event()

    def second() -> None:
        with held(tmp_path / "k", busy.set):
            order.append("second")

    other = threading.Thread(target=second)
    with held(tmp_path / "k"):
        other.start()
        assert busy.wait(30)
        other.join(0.2)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]
    assert left(tmp_path) == []


def test_of_many_at_once_each_has_it_alone(any_flock: str, tmp_path: Path):
    inside: list[int] = []
    most: list[int] = []

    def one() -> None:
        with flock(tmp_path / "k"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert most == [1] * 6


def test_who_must_not_wait_is_refused(any_flock: str, tmp_path: Path):
    store = LocalStore(tmp_path, "toy")
    refused = store.exclusive("k", print, wait=False)
    with store.exclusive("k", print), pytest.raises(MadeElsewhere, match="makes this very"), refused:
        raise AssertionError("two at once")


def owner(**given: Any) -> str:
    """A lease's file: of this process, but for what is given."""
    return json.dumps(Lease(Path("k"), Path("k"))._owner._replace(**given)._asdict())


def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def set_clock(path: Path, ahead: float) -> None:
    """The time of a file, as a file system gives it whose clock is `ahead` seconds ahead."""
    now = time.time() + ahead
    os.utime(path, (now, now))


AT_ONCE, SILENT = False, True
LEFT: dict[str, tuple[str, int, bool]] = {
    "a process that ended": (owner(pid=ended()), 0, AT_ONCE),
    "a process that ended, a clock ahead": (owner(pid=ended()), 3600, AT_ONCE),
    "its number belongs to another process": (owner(started="1"), 0, AT_ONCE),
    "a process that stands still": (owner(), 0, SILENT),
    "another machine": (owner(machine="another", pid=ended()), 0, SILENT),
    "another machine, a clock ahead": (owner(machine="another"), 3600, SILENT),
    "another machine, a clock behind": (owner(machine="another"), -3600, SILENT),
    "another machine, years ago": (owner(machine="another"), -(10**8), SILENT),
    "a machine that says nothing of itself": (owner(machine="", started="", pid=ended()), 0, SILENT),
    "a file that is empty": ("", 0, SILENT),
    "half a file": (owner()[:40], 0, SILENT),
    "another program's file": ('{"pid": 1}', 0, SILENT),
}
"""The file that is left, its clock in seconds from now, and whether it is succeeded only after the silence."""


@pytest.mark.parametrize("which", LEFT)
def test_what_a_dead_one_left_is_succeeded(which: str, tmp_path: Path):
    text, clock, is_silent = LEFT[which]
    (tmp_path / "k.lease").write_text(text)
    set_clock(tmp_path / "k.lease", clock)
    said: list[str] = []
    began = time.monotonic()
    with held(tmp_path / "k", say=said.append) as mine:
        assert (time.monotonic() - began >= STALE) == is_silent
        assert len(said) == is_silent
        mine.check()
        assert len(left(tmp_path)) == 2
    assert left(tmp_path) == []


def test_a_killed_process_that_nobody_waited_for_is_succeeded_at_once(tmp_path: Path):
    process = subprocess.Popen(["true"])
    while lease._state(process.pid)[0] != "Z":
        time.sleep(0.01)
    (tmp_path / "k.lease").write_text(owner(pid=process.pid, started=lease._state(process.pid)[1]))
    began = time.monotonic()
    with held(tmp_path / "k"):
        assert time.monotonic() - began < STALE
    process.wait()


def test_the_silence_of_a_process_is_waited_for_once(tmp_path: Path):
    for name in "abc":
        (tmp_path / f"{name}.lease").write_text(owner(token=name, process="silent", machine="another"))
    began = time.monotonic()
    with held(tmp_path / "a"), held(tmp_path / "b"), held(tmp_path / "c"):
        assert STALE <= time.monotonic() - began < 2 * STALE


def test_a_successor_without_a_first_one_means_nothing(tmp_path: Path):
    (tmp_path / "k.lease.gone").write_text(owner(machine="another"))
    began = time.monotonic()
    with held(tmp_path / "k") as mine:
        assert time.monotonic() - began < STALE
        mine.check()


def test_a_successor_that_was_killed_too_is_succeeded(tmp_path: Path):
    (tmp_path / "k.lease").write_text(owner(token="a", pid=ended()))
    (tmp_path / "k.lease.a").write_text(owner(token="b", pid=ended()))
    with held(tmp_path / "k"):
        assert left(tmp_path) == ["k.lease", "k.lease.a", "k.lease.b"]
    assert left(tmp_path) == []


@pytest.mark.parametrize("clock", [0, 3600, -3600], ids=["now", "ahead", "behind"])
def test_while_another_machine_shows_a_heartbeat_nobody_takes_over(clock: int, tmp_path: Path):
    theirs = tmp_path / "k.lease"
    theirs.write_text(owner(token="a", machine="another"))
    told: list[bool] = []

    def beat() -> None:
        until = time.monotonic() + 3 * STALE
        while time.monotonic() < until:
            set_clock(theirs, clock)
            time.sleep(0.05)
        theirs.unlink()

    beating = threading.Thread(target=beat)
    beating.start()
    with held(tmp_path / "k", lambda: told.append(beating.is_alive())):
        assert not beating.is_alive()
    assert told == [True]


def stand_still(mine: Lease) -> None:
    """Nothing is renewed any more, and the lease's time has run out."""
    mine._ended.set()
    mine._heartbeat.join()
    mine._renewed -= STALE


def take_over(folder: Path, mine: Lease) -> None:
    (folder / f"k.lease.{mine._owner.token}").write_text(owner(token="next", machine="another"))


LOST: dict[str, Callable[[Path, Lease], Any]] = {
    "another one took over": take_over,
    "that one has ended": lambda folder, _: (folder / "k.lease").unlink(),
    "a third one began": lambda folder, _: (folder / "k.lease").write_text(owner(token="third", machine="another")),
}


@pytest.mark.parametrize("how", LOST)
def test_who_stood_still_and_was_succeeded_neither_writes_nor_buys(how: str, tmp_path: Path):
    before: list[str] = []

    def one() -> None:
        with held(tmp_path / "k") as mine:
            kept = Journal(tmp_path / "episodes.jsonl", "place", print, mine.check)
            budget = Budget(None, None, tmp_path / "spent", mine.check)
            stand_still(mine)
            kept.append(episode(0, 1.0))  # nobody took over yet
            mine._renewed -= STALE
            LOST[how](tmp_path, mine)
            before.extend(left(tmp_path))
            for write in (
                lambda: kept.append(episode(1, 1.0)),
                lambda: kept.forget({0}),
                lambda: budget._move(reserved=1.0, out=1),
            ):
                with pytest.raises(MadeElsewhere):
                    write()
            raise FileNotFoundError("the other one has removed a folder")

    with pytest.raises(MadeElsewhere, match="another run took over"):
        one()
    assert (tmp_path / "episodes.jsonl").read_bytes() == episode(0, 1.0).line()
    assert (tmp_path / "spent").read_text() == ""
    assert left(tmp_path) == before, "the other's lease stays"


def works_for_hours(interrupted: list[bool]) -> None:
    try:
        threading.Event().wait(60)
    except KeyboardInterrupt:
        interrupted.append(True)
        raise


@pytest.mark.usefixtures("hears_sigint")
def test_the_thread_that_works_is_interrupted_when_another_process_has_taken_over(tmp_path: Path):
    interrupted: list[bool] = []

    def train_for_hours() -> None:
        with held(tmp_path / "k") as mine:
            take_over(tmp_path, mine)
            works_for_hours(interrupted)

    with pytest.raises(MadeElsewhere, match="another run took over"):
        train_for_hours()
    assert interrupted


@pytest.mark.parametrize("saw_it", [False, True])
def test_an_interrupt_that_comes_while_the_block_ends_says_who_took_over(saw_it: bool, tmp_path: Path):
    class LateInterrupt(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            raise KeyboardInterrupt

    def train_until_the_last_step() -> None:
        with held(tmp_path / "k") as mine:
            take_over(tmp_path, mine)
            mine._renewed -= STALE
            assert not mine.is_held()
            mine._heartbeat.join()
            mine._heartbeat = LateInterrupt()
            mine._heartbeat.start()
            if saw_it:
                mine.check()

    with pytest.raises(MadeElsewhere, match="another run took over"):
        train_until_the_last_step()


@pytest.mark.usefixtures("hears_sigint")
def test_a_stage_that_was_succeeded_publishes_nothing_and_leaves_the_others_files(work: RunContext):
    interrupted: list[bool] = []

    @stage(produces=Questions, version=1, title="toy")
    def toy(context: StageContext) -> dict[str, Any]:
        (context.out / "questions.jsonl").write_text("{}\n")
        (first,) = (context.run.store.root / ".locks").glob("toy-*.lease")
        first.write_text(owner(token="another", machine="another"))
        works_for_hours(interrupted)
        return COUNTS

    with pytest.raises(MadeElsewhere, match="another run took over"):
        toy(work)
    assert interrupted
    assert [each.name.split("-")[0] for each in (work.store.root / ".staging").iterdir()] == ["toy"]
    assert [each.name.split("-")[0] for each in (work.store.root / ".scratch").iterdir()] == ["toy"]
    assert not (work.store.root / "datasets").exists()


HOLDER = """
import sys, time
from pathlib import Path
from apprentice.tasks.files import lease
from apprentice.tasks.reporting.errors import Stop
lease.PERIOD, lease.STALE, folder = 0.05, float(sys.argv[2]), Path(sys.argv[1])
lease.fcntl.flock = lambda file, how: None
try:
    with lease.held(folder / "k") as mine:
        while not (folder / "end").exists():
            mine.check()
            with (folder / "written").open("a") as file:
                file.write("x")
            time.sleep(0.01)
except Stop as stop:
    sys.exit(str(stop))
"""


@pytest.mark.parametrize("with_what", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_is_succeeded(
    with_what: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease.fcntl, "flock", lambda file, how: None)
    written = tmp_path / "written"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), str(STALE)], stderr=subprocess.PIPE, text=True
    )
    while not (written.exists() and written.stat().st_size > 5):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(with_what)
    began = time.monotonic()
    with held(tmp_path / "k"):
        assert (time.monotonic() - began >= STALE) == (with_what == signal.SIGSTOP)
        before = written.stat().st_size
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=60)
        assert written.stat().st_size == before
    if with_what == signal.SIGSTOP:
        assert "another run took over" in said
        assert process.returncode == 1


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path):
    (tmp_path / ".locks" / "k").mkdir(parents=True)
    with pytest.raises(Stop, match="cannot be written"), LocalStore(tmp_path, "toy").exclusive("k", print):
        raise AssertionError("it was written")
