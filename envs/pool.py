"""Many sessions of one server, reused: work is spread over them, results come back as they finish.

In: items and what to do with each in an environment. Out: results in the order in which they finish.
Why: a reused session is seven times cheaper than a new one, one caller at a time is all that a session takes, and a
server grants only so many: how many is found out by asking for one more after another.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.breaker import Breaker
from apprentice.envs.wire.mixture import BreakerOfParts, SessionOfParts
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import AtCapacity, Session, breaker_of
from apprentice.envs.wire.waiting import spawn, start, wait_for

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Lease = Callable[[], AbstractAsyncContextManager[Any]]

ASK_AGAIN = 30.0
"""Seconds after which a server at its limit is asked for one more session; at first sooner, 1, 2, 4, … seconds."""


open_pools: "WeakSet[EnvironmentPool]" = WeakSet()
"""All pools of this process: whoever is interrupted ends the work of the other threads, too."""


class EnvironmentPool:
    """Up to `size` environments, each with a session of its own. Use it as a context manager.

    Args:
        size: Environments; the server's `sessions` when left out.
        say: Told about outages and limits.
        lease: Of a server: what each open session holds; see `Session`.
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
        self._crews: list[Crew[Any, Any]] = []
        self._opening: Future[Any] | None = None
        self._limit: int | None = None
        self._refusals = 0
        self._ask_at = 0.0
        open_pools.add(self)
        self.environments = [spec.make(session) for session in self.sessions]

    def __enter__(self) -> "EnvironmentPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._opening is not None:
            self._opening.cancel()
        wait_for(self._shut())

    def open_ahead(self) -> "Future[Any]":
        """Begins to open what the server grants while the caller does something else, such as loading a model.

        Take the result before anything is played: SessionLost where the server is away.
        """
        self._opening = start(self._open(range(len(self.sessions))))
        return self._opening

    def playable(self, idle: Sequence[int], wanted: int) -> list[int]:
        """At most `wanted` of the `idle` environments that can be played in: their sessions are open.

        More are opened as far as the server grants them; at its limit it is asked again now and then. Where no session
        is open at all, one is waited for. Raises SessionLost.
        """
        closed = [place for place in idle if not self.sessions[place].is_open]
        missing = closed[: max(0, wanted - (len(idle) - len(closed)))]
        if missing and time.monotonic() >= self._ask_at:
            wait_for(self._open(missing))
        if missing and not self.granted:
            wait_for(self.sessions[missing[0]].open(patient=True))
        return [place for place in idle if self.sessions[place].is_open][:wanted]

    async def _open(self, places: Iterable[int]) -> None:
        """Opens the sessions of these places, one after another, until the server grants no more."""
        for place in places:
            try:
                await self.sessions[place].open()
            except AtCapacity:
                await self.sessions[place].shut()
                self._ask_at = time.monotonic() + self.at_limit()
                return

    def at_limit(self) -> float:
        """Says that the server grants no more than it does; returns in how many seconds to ask again."""
        if self._limit is None or self.granted > self._limit:
            self._limit, self._refusals = self.granted, 0
            self.say(
                f"{self.server.url} grants no more than {self._limit} sessions at once, and this stage can use "
                f"{len(self.sessions)}. Going on with {self._limit}; a higher max_concurrent_envs on the server is "
                "faster."
                if self._limit
                else f"{self.server.url} grants no session: all are in use. Waiting for one."
            )
        self._refusals += 1
        return min(2.0 ** (self._refusals - 1), ASK_AGAIN)

    def open_all(self) -> None:
        """Opens every session; waits for places for as long as one is patient with the server. Raises SessionLost."""

        async def all_of_them() -> list[Any]:
            opening = (session.open(patient=True) for session in self.sessions)
            return await asyncio.gather(*opening, return_exceptions=True)

        for each in wait_for(all_of_them()):
            if isinstance(each, BaseException):
                raise each

    @property
    def granted(self) -> int:
        """The sessions that are open."""
        return sum(session.is_open for session in self.sessions)

    def interrupt(self) -> None:
        """Ends what runs on another thread; there `map` raises CancelledError."""

        async def all_of_them() -> None:
            for crew in self._crews:
                await crew.stop()

        start(all_of_them())

    async def _shut(self) -> None:
        self.breaker.stop()
        for crew in self._crews:  # one that ran to its end, or one whose results nobody takes any more
            await crew.stop()
        await asyncio.gather(*(session.shut() for session in self.sessions))

    def map(self, play: Callable[[ToolEnvironment, I], R], items: Iterable[I]) -> Iterator[tuple[I, R]]:
        """Applies `play` to every item in an environment that is free, and yields each as it finishes.

        Raises what `play` raises, after those that were running then are done and yielded; SessionLost.
        """
        crew = Crew(self, play, items)
        self._crews.append(crew)
        running = start(crew.run())
        while (finished := crew.results.get()) is not None:
            yield finished
        running.result()

    def together(self, do: Callable[[int], R], count: int) -> list[R]:
        """`do(0)` … `do(count - 1)`, all at once; results in order. Raises the first one's exception."""

        async def all_of_them() -> list[R | BaseException]:
            return await asyncio.gather(*(spawn(do, place) for place in range(count)), return_exceptions=True)

        results = wait_for(all_of_them())
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # type: ignore[return-value]


def sessions_with(
    server: EnvironmentServer, number: int, say: Callable[[str], None], lease: Callable[[EnvironmentServer], Lease]
) -> tuple[Breaker, list[Session]]:
    """Sessions with a server, or with all servers of a mixture, and the breaker that they share."""
    if server.parts:
        breakers = BreakerOfParts(server, say)
        return breakers, [SessionOfParts(server, breakers, lease) for _ in range(number)]
    breaker = breaker_of(server, say)
    return breaker, [Session(server, breaker, lease(server)) for _ in range(number)]


_END = object()
"""Stands where no item is left."""


class Crew(Generic[I, R]):
    """One worker an open session; more join as the server grants more."""

    def __init__(self, pool: EnvironmentPool, play: Callable[[ToolEnvironment, I], R], items: Iterable[I]):
        self.results: SimpleQueue[tuple[I, R] | None] = SimpleQueue()
        self._pool = pool
        self._play = play
        self._items = iter(items)
        self._ahead: Any = next(self._items, _END)
        self._idle: asyncio.Queue[tuple[ToolEnvironment, Session]] = asyncio.Queue()
        for each in zip(pool.environments, pool.sessions, strict=True):
            self._idle.put_nowait(each)
        self._workers: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        if self._ahead is _END:
            self._no_more.set()
        self._error: BaseException | None = None
        self._running: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Ends when every item is done, or with the first error once what was running is done."""
        self._running = asyncio.current_task()
        growing = asyncio.create_task(self._grow())
        try:
            await self._no_more.wait()
            await _end([growing])
            await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            try:
                await _end([growing, *self._workers])
            finally:  # whoever waits for results must hear the end, also when this is cancelled once more
                self.results.put(None)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Ends it in the middle of whatever it does."""
        if self._running is not None:
            await _end([self._running])

    async def _grow(self) -> None:
        """Opens one session after another; asks a server at its limit again now and then."""
        try:
            while not self._no_more.is_set():
                environment, session = await self._idle.get()
                while any(other.turned_away for other in self._pool.sessions):  # an episode that runs comes first
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

    async def _work(self, environment: ToolEnvironment, session: Session) -> None:
        try:
            while (item := self._take()) is not _END:
                self.results.put((item, await spawn(self._play, environment, item)))
                while self.results.qsize() > 4 * len(self._pool.sessions):  # whoever takes them is slower
                    await asyncio.sleep(0.005)
                await self._pool.breaker.wait()
                if any(other.turned_away for other in self._pool.sessions):  # it gets this one's place
                    await session.shut()
                    self._idle.put_nowait((environment, session))
                    return
            await session.shut()  # its place is free for one that loses its own in its last episode
        except Exception as error:
            self._stop(error)

    def _take(self) -> Any:
        """The next item, or _END. Whoever takes the last one says so: nobody need come back to find out."""
        if self._error is not None:
            return _END
        item, self._ahead = self._ahead, next(self._items, _END)
        if self._ahead is _END:
            self._no_more.set()
        return item

    def _siblings_play(self) -> bool:
        """Whether other pools of this process hold the places: they give them back when they are done."""
        others = (pool for pool in list(open_pools) if pool is not self._pool)
        return any(session.is_open for pool in others for session in pool.sessions)

    def _stop(self, error: BaseException) -> None:
        self._error = self._error or error
        self._no_more.set()


async def _end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancels until all are done: in Python 3.11 `asyncio.wait_for` swallows a cancellation that meets its result."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=1.0)
