"""Checks environments of a pool out to callers that schedule episodes themselves, such as Inspect.

In: an open pool. Out: an environment with an open session, for one episode at a time.
Why: `EnvironmentPool.map` schedules a given list of items.
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
    environment: ToolEnvironment
    session: Session


class EnvironmentQueue:
    """A queue of a pool's environments. Runs on the event loop of `waiting`.

    Opens sessions on demand, and uses fewer when the server grants fewer.

    Args:
        episodes: Number of episodes to play. Once all have begun, idle sessions are closed, so that the server has room
            for an episode that must reconnect.
    """

    def __init__(self, pool: EnvironmentPool, episodes: int):
        self._pool = pool
        self._ahead = episodes
        self._free: asyncio.LifoQueue[Checkout] = asyncio.LifoQueue()  # open sessions first
        for each in zip(pool.environments, pool.sessions, strict=True):
            self._free.put_nowait(Checkout(*each))
        self._all = len(pool.sessions)

    async def take(self) -> Checkout:
        """An environment with an open session; waits until one is free. Raises SessionLost."""
        while True:
            checkout = await self._free.get()
            try:
                if not checkout.session.is_open:
                    await checkout.session.open(patient=self._all == 1)
            except AtCapacity:
                await self._do_without(checkout.session)
            except BaseException:
                self._free.put_nowait(checkout)
                raise
            else:
                self._ahead -= 1
                return checkout

    async def give_back(self, checkout: Checkout) -> None:
        self._free.put_nowait(checkout)
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
            self._pool.say(f"{self._pool.server.url} grants no more than {granted} sessions; continuing with those.")
        self._all -= 1
        await session.shut()


class EpisodeSlot:
    """The environment of one episode. Its coroutines run on the event loop of `waiting`, one at a time, even when the
    caller cancels one and starts the next."""

    def __init__(self, environments: EnvironmentQueue):
        self._environments = environments
        self._checkout: Checkout | None = None
        self._busy = asyncio.Lock()

    async def begin(self, seed: int) -> Episode:
        """Checks out an environment and starts the episode of a seed. Raises SessionLost, Refused."""
        async with self._busy:
            self._checkout = await self._environments.take()
            return await spawn(Episode, self._checkout.environment, seed)

    async def do(self, call: Callable[..., T], *given: Any) -> T:
        """Runs synchronous code that uses the environment. Raises what it raises."""
        async with self._busy:
            return await spawn(call, *given)

    async def leave(self) -> None:
        async with self._busy:
            if self._checkout is not None:
                checkout, self._checkout = self._checkout, None
                await self._environments.give_back(checkout)
