"""A pool of reused sessions with one server, which plays many episodes concurrently.

In: items and a function that plays one item in an environment. Out: results as they finish.
Why: a reused session is seven times cheaper than a new one, a session serves one caller at a time, and a server limits
its sessions. The pool finds the limit by opening one session after another.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.mixture import SessionOfParts, SeveralBreakers
from apprentice.envs.player import Player
from apprentice.envs.wire.breaker import Breaker
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import AtCapacity, Session, breaker_of
from apprentice.envs.wire.waiting import spawn, start, wait_for

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Lease = Callable[[], AbstractAsyncContextManager[Any]]

ASK_AGAIN = 30.0
"""Longest wait in seconds between requests for another session at the server's limit; starts at 1, 2, 4, … seconds."""


open_pools: "WeakSet[EnvironmentPool]" = WeakSet()
"""All pools of this process: an interrupt also stops the work of other threads."""


class EnvironmentPool:
    """Up to `size` environments, each with its own session. Use it as a context manager.

    Args:
        size: Number of environments; defaults to the server's `sessions`.
        say: Called with a message about an outage or a limit.
        lease: Returns the lease that each open session of a server takes; see `Session`.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        server: EnvironmentServer,
        size: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        lease: Callable[[EnvironmentServer], Lease] = lambda server: nullcontext,
    ):
        self.server = server
        self.say = say
        self.breaker, self.sessions = sessions_with(server, size or server.sessions, say, lease)
        self._working: list[Workers[Any, Any]] = []
        self._opening: Future[Any] | None = None
        self._limit: int | None = None
        self._refusals = 0
        self._ask_at = 0.0
        open_pools.add(self)
        self.players = [spec.make(session) for session in self.sessions]

    def __enter__(self) -> "EnvironmentPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._opening is not None:
            self._opening.cancel()
        wait_for(self._shut())

    def open_ahead(self) -> "Future[Any]":
        """Open sessions in the background while the caller does something else, such as loading a model.

        Wait for the result before playing: it raises SessionLost if the server is unavailable.
        """
        self._opening = start(self._open(range(len(self.sessions))))
        return self._opening

    def playable(self, idle: Sequence[int], wanted: int) -> list[int]:
        """Return the indices of at most `wanted` of the `idle` environments, all with open sessions.

        Opens more sessions if the server grants them, and retries at its limit from time to time. Waits for one if no
        session is open at all. Raises SessionLost.
        """
        closed = [index for index in idle if not self.sessions[index].is_open]
        missing = closed[: max(0, wanted - (len(idle) - len(closed)))]
        if missing and time.monotonic() >= self._ask_at:
            wait_for(self._open(missing))
        if missing and not self.granted:
            wait_for(self.sessions[missing[0]].open(patient=True))
        return [index for index in idle if self.sessions[index].is_open][:wanted]

    async def _open(self, indices: Iterable[int]) -> None:
        """Open these sessions; at the server's limit say so, and note when to ask it again."""
        if not await self._open_granted(indices):
            self._ask_at = time.monotonic() + self.at_limit()

    async def _open_granted(self, indices: Iterable[int]) -> bool:
        """Open these sessions, one after another, until the server, or each of its copies, grants no more; return
        whether all are open."""
        refused: set[str] = set()
        for index in indices:
            if self.sessions[index].server.url in refused:
                continue
            try:
                await self.sessions[index].open()
            except AtCapacity:
                await self.sessions[index].shut()
                refused.add(self.sessions[index].server.url)
        return not refused

    def _take_turns(self) -> None:
        """Let the sessions that the server does not grant take turns in those that it does."""
        own = [session for session in self.sessions if not session.is_guest]
        hosts = [session for session in own if session.is_open]
        waiting = [session for session in own if not session.is_open and not session.is_shared]
        self.say(
            f"{self.server.url} grants {len(hosts)} of {len(self.sessions)} sessions, so {len(self.sessions)} episodes "
            "take turns: before its next step each is put back by a reset and its earlier actions, and the replies are "
            "compared. Step n of an episode costs n + 1 messages; a server that is made with create_app(…, "
            "max_concurrent_envs=64) is faster."
        )
        for place, session in enumerate(waiting):
            session.join(hosts[place % len(hosts)])

    def at_limit(self) -> float:
        """Report the server's limit and return the seconds after which to ask again."""
        if self._limit is None or self.granted > self._limit:
            self._limit, self._refusals = self.granted, 0
            self.say(
                f"{self.server.url} grants only {self._limit} concurrent sessions; this stage can use "
                f"{len(self.sessions)}. Continuing with {self._limit}; a higher max_concurrent_envs on the server is "
                "faster."
                if self._limit
                else f"{self.server.url} grants no session: all are in use. Waiting for one."
            )
        self._refusals += 1
        return min(2.0 ** (self._refusals - 1), ASK_AGAIN)

    def open_all(self, turns: bool = True) -> None:
        """Open every session. Raises SessionLost.

        Args:
            turns: Whether they take turns in those that the server grants, where it grants too few. Then only the first
                one is waited for, up to the server's `patience`; otherwise each is.
        """
        if not turns:
            _together(session.open(patient=True) for session in self.sessions)
            return
        wait_for(self.sessions[0].open(patient=True))
        if not wait_for(self._open_granted(range(1, len(self.sessions)))):
            self._take_turns()

    @property
    def granted(self) -> int:
        return sum(session.is_open for session in self.sessions)

    def interrupt(self) -> None:
        """Stop what runs on another thread; `map` raises CancelledError there."""
        start(self._stop_workers())

    async def _stop_workers(self) -> None:
        for workers in self._working:
            await workers.stop()

    async def _shut(self) -> None:
        self.breaker.stop()
        await self._stop_workers()  # which have finished, or whose results are no longer consumed
        await asyncio.gather(*(session.shut() for session in self.sessions))

    def map(self, play: Callable[[Player, I], R], items: Iterable[I]) -> Iterator[tuple[I, R]]:
        """Apply `play` to every item in a free environment, and yield each item with its result as it finishes.

        Raises what `play` raises, once the items that were running have finished and were yielded; SessionLost.
        """
        workers = Workers(self, play, items)
        self._working.append(workers)
        running = start(workers.run())
        while (finished := workers.results.get()) is not None:
            yield finished
        running.result()

    def together(self, do: Callable[[int], R], count: int) -> list[R]:
        """Run `do(0)` … `do(count - 1)` concurrently and return the results in order. Raises the first exception."""
        return _together(spawn(do, index) for index in range(count))


def _together(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Return all results in order, once all have ended. Raises the first exception."""

    async def all_of_them() -> list[R | BaseException]:
        return await asyncio.gather(*coroutines, return_exceptions=True)

    results = wait_for(all_of_them())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def sessions_with(
    server: EnvironmentServer, number: int, say: Callable[[str], None], lease: Callable[[EnvironmentServer], Lease]
) -> tuple[Breaker, list[Session]]:
    """Return sessions with a server, its copies, or all servers of a mixture, and the breaker that they share."""
    if server.parts:
        breakers = SeveralBreakers(server.parts, say)
        return breakers, [SessionOfParts(server, breakers, lease) for _ in range(number)]
    if server.urls:
        copies = server.each()
        breakers = SeveralBreakers({each.url: each for each in copies}, say)
        of = [copies[place % len(copies)] for place in range(number)]
        return breakers, [Session(each, breakers.parts[each.url], lease(each)) for each in of]
    breaker = breaker_of(server, say)
    return breaker, [Session(server, breaker, lease(server)) for _ in range(number)]


_END = object()
"""Marks that no item is left."""


class Workers(Generic[I, R]):
    """One worker per open session; workers are added as the server grants more sessions."""

    def __init__(self, pool: EnvironmentPool, play: Callable[[Player, I], R], items: Iterable[I]):
        self.results: SimpleQueue[tuple[I, R] | None] = SimpleQueue()
        self._pool = pool
        self._play = play
        self._items = iter(items)
        self._ahead: Any = next(self._items, _END)
        self._idle: asyncio.Queue[tuple[Player, Session]] = asyncio.Queue()
        for each in zip(pool.players, pool.sessions, strict=True):
            self._idle.put_nowait(each)
        self._workers: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        if self._ahead is _END:
            self._no_more.set()
        self._error: BaseException | None = None
        self._running: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Play every item. After an error, finish the items that are running and raise it."""
        self._running = asyncio.current_task()
        growing = asyncio.create_task(self._grow())
        try:
            await self._no_more.wait()
            await _end([growing])
            await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            try:
                await _end([growing, *self._workers])
            finally:  # the consumer must see the end of the results, even after a second cancellation
                self.results.put(None)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        if self._running is not None:
            await _end([self._running])

    async def _grow(self) -> None:
        """Open one session after another; ask a server at its limit again from time to time."""
        try:
            while not self._no_more.is_set():
                environment, session = await self._idle.get()
                while any(other.turned_away for other in self._pool.sessions):  # running episodes come first
                    await asyncio.sleep(1.0)
                try:
                    await session.open()
                except AtCapacity:
                    wait = self._pool.at_limit()
                    if self._workers or self._siblings_play():
                        await session.shut()
                        self._idle.put_nowait((environment, session))
                        await asyncio.sleep(wait)
                        continue
                    await session.open(patient=True)
                worker = asyncio.create_task(self._work(environment, session))
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)
        except Exception as error:
            self._stop(error)

    async def _work(self, player: Player, session: Session) -> None:
        try:
            while (item := self._take()) is not _END:
                self.results.put((item, await spawn(self._play, player, item)))
                while self.results.qsize() > 4 * len(self._pool.sessions):  # the consumer is slower
                    await asyncio.sleep(0.005)
                await self._pool.breaker.wait()
                if any(other.turned_away for other in self._pool.sessions):  # it gets this session's slot
                    await session.shut()
                    self._idle.put_nowait((player, session))
                    return
            await session.shut()  # frees a slot for a session that loses its own during its last episode
        except Exception as error:
            self._stop(error)

    def _take(self) -> Any:
        """Return the next item, or _END. Taking the last item also ends the search for more sessions."""
        if self._error is not None:
            return _END
        item, self._ahead = self._ahead, next(self._items, _END)
        if self._ahead is _END:
            self._no_more.set()
        return item

    def _siblings_play(self) -> bool:
        """Return whether other pools of this process have open sessions: they close them when they are done."""
        others = (pool for pool in list(open_pools) if pool is not self._pool)
        return any(session.is_open for pool in others for session in pool.sessions)

    def _stop(self, error: BaseException) -> None:
        self._error = self._error or error
        self._no_more.set()


async def _end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel until all are done: `asyncio.wait_for` of Python 3.11 drops a cancellation that arrives with a result."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=1.0)
