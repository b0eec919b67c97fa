"""Limits that concurrent runs share: an environment server's sessions, a teacher's requests and tokens per minute, and
one run of a name at a time.

In: a limit's name and size. Out: context managers. With a permanent Prefect server the limits hold over all machines,
without one within this process.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aiolimiter import AsyncLimiter
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import concurrency, rate_limit
from prefect.concurrency.sync import concurrency as sync_concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.permanent_server import shared

LEASE = 60.0
"""Seconds after which Prefect releases the slot of a killed process."""


def limit_name(what: str, url: str, detail: str = "") -> str:
    """A limit's name for the host of `url`, such as sessions-owner-wordle-hf-space."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what} {urlsplit(url).netloc} {detail}".lower()).strip("-")


class Slot:
    """Occupies one of `slots` slots of a shared limit: an asynchronous context manager.

    A separate task occupies the slot: Prefect's `concurrency` must be entered and left by the same task, but a session
    is opened and closed by different ones.
    """

    def __init__(self, name: str, slots: int):
        self._name = name
        self._slots = slots
        self._release = asyncio.Event()

    async def __aenter__(self) -> None:
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._occupying = asyncio.create_task(self._occupy())
        try:
            await asyncio.wait([self._entered], timeout=5.0)
            if not self._entered.done():
                announce.warn(f"Other runs occupy all slots of the shared limit {self._name}; waiting for one.")
            await self._entered
        except BaseException:
            self._occupying.cancel()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        await self._occupying

    async def _occupy(self) -> None:
        try:
            await _ensure(self._name, self._slots, decay=0.0)
            async with concurrency(self._name, strict=True, lease_duration=LEASE, raise_on_lease_renewal_failure=False):
                self._entered.set_result(None)
                await self._release.wait()
        except Exception as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)


class Rate:
    """A rate limit of `per_minute` units, with a burst of one second's units or the `largest` single amount."""

    def __init__(self, name: str, per_minute: float, largest: float = 1.0):
        self._name = name
        self._per_minute = per_minute
        self._burst = max(per_minute / 60, largest, 1.0)
        self._local = AsyncLimiter(self._burst, 60 * self._burst / per_minute)
        self._bought = 0.0
        self._buying = asyncio.Lock()

    async def take(self, units: float = 1.0) -> None:
        """Waits until `units` may be used."""
        if not shared():
            await self._local.acquire(min(units, self._burst))
            return
        async with self._buying:  # one second's units at once, because a call to Prefect takes 10 ms
            while self._bought < units:
                granted = await _ensure(self._name, int(self._burst), decay=self._per_minute / 60)
                block = min(int(self._burst), granted)
                await rate_limit(self._name, occupy=block, strict=True)
                self._bought += block
            self._bought -= units


_known: dict[str, int] = {}


async def _ensure(name: str, limit: int, decay: float) -> int:
    """Creates the limit if needed; returns its actual size, which an operator may have changed."""
    if name in _known:
        return _known[name]
    async with get_client() as client:
        try:
            limit = (await client.read_global_concurrency_limit_by_name(name)).limit
        except ObjectNotFound:
            made = GlobalConcurrencyLimitCreate(name=name, limit=limit, slot_decay_per_second=decay)
            with suppress(ObjectAlreadyExists):  # another run has just created it
                await client.create_global_concurrency_limit(made)
    _known[name] = limit
    return limit


@contextmanager
def one_run(store: LocalStore, name: str) -> Iterator[None]:
    """One run of that name at a time, of all processes over one folder and of all over one permanent Prefect server."""

    waiting = f"Another run of {name} is under way; waiting for it to end."
    with store.exclusive(name, lambda _: announce.warn(waiting)):
        if not shared():
            yield
            return
        limit = re.sub(r"[^a-z0-9]+", "-", name.lower())
        asyncio.run(_ensure(limit, 1, decay=0.0))
        with sync_concurrency(limit, strict=True, lease_duration=LEASE, raise_on_lease_renewal_failure=False):
            yield


def leases(server: EnvironmentServer) -> Callable[[], Any]:
    """A factory of leases on a server's shared session limit; null contexts where the limit is not shared."""
    if not (server.shared and shared()):
        return nullcontext
    return partial(Slot, limit_name("sessions", server.url), server.sessions)
