"""Gives one process at a time what a path names, also where the file system's own locks exclude nobody.

In: a path. Out: a `Lease`, held until the block ends. Another process waits, and gets it then.

    <path>                  locked with flock, which wakes a waiting process at once
    <path>.lease            the owner; the file's time of change is the heartbeat
    <path>.lease.<token>    the next owner, after the one with that token was killed or stood still

On some mounts flock excludes nobody on other machines (Lustre's localflock, NFS's nolock), or is not supported. A lease
is exclusive wherever a file can be created exclusively. No two machines' clocks are compared: a waiting process
measures with its own clock how long a heartbeat has not changed.
"""

import fcntl
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple
from uuid import uuid4

from psutil import pid_exists

from apprentice.tasks.reporting.errors import MadeElsewhere

PERIOD = 5.0
"""Seconds between two heartbeats."""
STALE = 60.0
"""Seconds without a heartbeat after which a waiting process takes over."""
_SELF = uuid4().hex


class Owner(NamedTuple):
    """Who holds a lease."""

    token: str
    """A new one for each lease."""
    process: str
    """The same for all leases of a process."""
    host: str = "another machine"
    pid: int = 0
    machine: str = ""
    """This boot of the machine and the namespace of the pid; empty where they are not known."""
    started: str = ""
    """When the process started, in the machine's own count."""

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended; False where that cannot be known."""
        if not self.machine or self.machine != _machine():
            return False
        state, started = _state(self.pid)
        return not pid_exists(self.pid) if not state else state in "XZ" or started != self.started


@cache
def _machine() -> str:
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _state(pid: int) -> tuple[str, str]:
    """A process's state, such as R or Z, and when it started; empty where it cannot be read."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
        return fields[0], fields[19]
    return "", ""


def _now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseState(NamedTuple):
    """The last file of a lease: who holds it, as a waiting process sees it."""

    path: Path
    owner: Owner
    beat: int
    """The time of the heartbeat in the file system's clock, in ns: compared with itself only."""


def _chain(first: Path) -> list[LeaseState]:
    """The owners of a lease: the last one holds it. Empty where nobody does."""
    found: list[LeaseState] = []
    path = first
    while True:
        try:
            with path.open() as file:  # opening makes a network file system look at its server
                beat = os.fstat(file.fileno()).st_mtime_ns
                text = file.read()
        except FileNotFoundError:
            return found
        try:
            owner = Owner(**json.loads(text))
        except (ValueError, TypeError):  # half-written
            owner = Owner(f"unreadable-{len(found)}", str(path))
        found.append(LeaseState(path, owner, beat))
        path = first.with_name(f"{first.name}.{owner.token}")


class Lease:
    """A lease that this process holds. It renews itself within a `with` block, which releases it.

    Args:
        first: The file of the first owner.
        path: The file of this one.
    """

    def __init__(self, first: Path, path: Path):
        self._first = first
        self._path = path
        self._renewed = _now()
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._lost = False
        self._interrupts = threading.current_thread() is threading.main_thread()
        self._heartbeat = threading.Thread(target=self._beat, name=f"lease {path.name}", daemon=True)
        started = _state(os.getpid())[1]
        self._owner = Owner(
            uuid4().hex, f"{_SELF}-{os.getpid()}", socket.gethostname(), os.getpid(), _machine(), started
        )

    def taken(self) -> bool:
        """Creates the file; False where another process was faster."""
        try:
            with self._path.open("x") as file:
                json.dump(self._owner._asdict(), file)
        except FileExistsError:
            return False
        if not self._is_last():
            self._path.unlink()
            return False
        return True

    def is_held(self) -> bool:
        """Whether no other process has taken over, as it does after this one stood still for `STALE` seconds."""
        return not self._lost and (_now() - self._renewed < STALE / 2 or self._renew())

    def check(self) -> None:
        """Raises MadeElsewhere if another process has taken over. Call it before you write."""
        if not self.is_held() and (lost := self.taken_over()):
            raise lost

    def __enter__(self) -> "Lease":
        self._heartbeat.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._heartbeat.join()
        with suppress(OSError):  # the file system is away: the lease ends by itself
            if self.is_held():
                for seen in _chain(self._first):  # the first one first: without it, the others mean nothing
                    seen.path.unlink(missing_ok=True)

    def taken_over(self) -> MadeElsewhere | None:
        """What to raise once another process has taken over; None while none has, as far as this one has seen."""
        if not self._lost:
            return None
        return MadeElsewhere(
            f"This process stood still for more than {STALE:.0f} s, and another run took over {self._first}.",
            "Wait for that run to end, then run again: this run then uses its result.",
        )

    def _is_last(self) -> bool:
        return any(seen.owner.token == self._owner.token for seen in _chain(self._first)[-1:])

    def _renew(self) -> bool:
        with self._renewing:
            now = _now()
            with suppress(FileNotFoundError):
                os.utime(self._path)
            self._lost = self._lost or not self._is_last()
            self._renewed = now if not self._lost else self._renewed
            return not self._lost

    def _beat(self) -> None:
        while not self._ended.wait(PERIOD):
            with suppress(OSError):  # the file system may be away for a while
                if not self._renew():
                    if self._interrupts:  # the thread within the block, which may be training for hours
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    return


_silent: dict[str, int] = {}
"""The last heartbeat of each process that stood still: none of its other leases is waited for again."""


class _Watch:
    """Watches a lease that another process holds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Without a heartbeat. Those in which this process itself stood still do not count."""
        self._before: tuple[str, int] | None = None
        self._pause = 0.01

    def sees_life(self, seen: LeaseState) -> bool:
        """Whether there was a heartbeat since the last look."""
        before, self._before = self._before, (seen.owner.token, seen.beat)
        if before in (None, self._before):
            return False
        self.seconds = 0.0
        return True

    def is_over(self, seen: LeaseState) -> bool:
        """Whether the owner was killed, or stands still."""
        if self.seconds >= STALE:
            _silent[seen.owner.process] = seen.beat
        return seen.owner.is_gone or seen.beat <= _silent.get(seen.owner.process, -1) + PERIOD * 1e9

    def wait(self) -> None:
        began = time.monotonic()
        time.sleep(self._pause)
        self.seconds += min(time.monotonic() - began, 2 * self._pause)
        self._pause = min(2 * self._pause, 1.0)


@contextmanager
def held(
    path: Path, busy: Callable[[], None] = lambda: None, say: Callable[[str], None] = lambda _: None
) -> Iterator[Lease]:
    """Yields the lease of what `path` names, once no other process has it.

    Args:
        busy: Called once if another process has it and runs; may raise instead of waiting.
        say: Called with a sentence if another process has it and shows no heartbeat.
    """
    once = cache(busy)
    with path.open("w") as lock:
        _flock(lock, once)
        lease = _lease(path.with_name(f"{path.name}.lease"), once, say)
        try:
            with lease:
                yield lease
        except (Exception, KeyboardInterrupt) as error:  # the heartbeat's interrupt may also come as the block ends
            if not isinstance(error, MadeElsewhere) and (lost := lease.taken_over()):
                raise lost from error
            raise


def _flock(lock: IO[str], busy: Callable[[], None]) -> None:
    """Waits for the flock; returns without it where it is not supported (ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL, …)."""
    with suppress(OSError):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy()
        fcntl.flock(lock, fcntl.LOCK_EX)
    return None


def _lease(first: Path, busy: Callable[[], None], say: Callable[[str], None]) -> Lease:
    watch, is_reported = _Watch(), False
    while True:
        last = next(reversed(_chain(first)), None)
        if last is not None and watch.sees_life(last):
            busy()
        elif last is None or watch.is_over(last):
            lease = Lease(first, first if last is None else first.with_name(f"{first.name}.{last.owner.token}"))
            if lease.taken():
                return lease
        elif watch.seconds > 2 * PERIOD and not is_reported:
            is_reported = True
            say(
                f"Process {last.owner.pid} on {last.owner.host} holds {last.path}, but has shown no heartbeat for "
                f"{watch.seconds:.0f} s; this run takes over after {STALE:.0f} s."
            )
        watch.wait()
