"""Lends the environments of a pool to whoever decides for himself what is played, and when.

In: an open pool. Out: one environment a borrower, with an open session, for as long as an episode lasts.
Why: `EnvironmentPool.map` plays the items it is given; a framework that schedules its own samples, such as Inspect,
cannot hand them over.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import AtCapacity, Session
from apprentice.envs.wire.waiting import spawn
from apprentice.tasks.episodes.episode import Episode

T = TypeVar("T")


class Checkout(NamedTuple):
    """An environment and the session that it plays over."""

    environment: ToolEnvironment
    session: Session


class EnvironmentQueue:
    """Lends the environments of a pool. Lives on the loop of `waiting`.

    Sessions are opened as they are needed, and fewer are lent when the server grants fewer.

    Args:
        episodes: That are to be played. Once all have begun, what is not lent is closed: its place is free then for
            one that loses its own in its last episode.
    """

    def __init__(self, pool: EnvironmentPool, episodes: int):
        self._pool = pool
        self._ahead = episodes
        self._free: asyncio.LifoQueue[Checkout] = asyncio.LifoQueue()  # the open ones lie on top
        for each in zip(pool.environments, pool.sessions, strict=True):
            self._free.put_nowait(Checkout(*each))
        self._all = len(pool.sessions)

    async def take(self) -> Checkout:
        """One with an open session. Raises SessionLost."""
        while True:
            lent = await self._free.get()
            try:
                if not lent.session.is_open:
                    await lent.session.open(patient=self._all == 1)
            except AtCapacity:
                await self._do_without(lent.session)
            except BaseException:
                self._free.put_nowait(lent)
                raise
            else:
                self._ahead -= 1
                return lent

    async def give_back(self, lent: Checkout) -> None:
        self._free.put_nowait(lent)
        if self._ahead <= 0 or any(session.turned_away for session in self._pool.sessions):
            idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
            try:
                await asyncio.gather(*(each.session.shut() for each in idle))
            finally:
                for each in idle:
                    self._free.put_nowait(each)

    async def _do_without(self, session: Session) -> None:
        granted = sum(each.is_open for each in self._pool.sessions)
        if self._all == len(self._pool.sessions):
            self._pool.say(f"{self._pool.server.url} grants no more than {granted} sessions at once; going on with it.")
        self._all -= 1
        await session.shut()


class EpisodeSlot:
    """One episode's hold on an environment. Its coroutines run on the loop of `waiting`, one after another, also where
    the borrower cancelled one and asks for the next: a session takes one caller at a time."""

    def __init__(self, lender: EnvironmentQueue):
        self._lender = lender
        self._lent: Checkout | None = None
        self._busy = asyncio.Lock()

    async def begin(self, seed: int) -> Episode:
        """Raises SessionLost, Refused."""
        async with self._busy:
            self._lent = await self._lender.take()
            return await spawn(Episode, self._lent.environment, seed)

    async def do(self, call: Callable[..., T], *given: Any) -> T:
        """Runs synchronous code that plays in the environment. Raises what it raises."""
        async with self._busy:
            return await spawn(call, *given)

    async def leave(self) -> None:
        async with self._busy:
            if self._lent is not None:
                lent, self._lent = self._lent, None
                await self._lender.give_back(lent)
