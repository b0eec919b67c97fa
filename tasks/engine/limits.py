"""Limits that runs share: sessions of one environment server, requests and tokens a minute of one teacher.

In: a limit's name and size. Out: a wait until there is room.
Where a Prefect server is in use the limit is one of its global concurrency limits, made at first use and from then on
the operator's to change (`prefect gcl update NAME --limit N`); without one it holds within this process.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aiolimiter import AsyncLimiter
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import concurrency, rate_limit
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.shared_server import shared

LEASE = 60.0
"""Seconds after which Prefect takes back what a killed holder held."""


def limit_name(what: str, url: str, detail: str = "") -> str:
    """A limit's name for the host behind `url`, such as sessions-owner-wordle-hf-space."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what} {urlsplit(url).netloc} {detail}".lower()).strip("-")


class Lease:
    """Holds one of `slots` slots of a shared limit: an asynchronous context manager.

    A task of its own holds it: Prefect's `concurrency` must be left by the task that entered it, and a session is
    opened by one and closed by another.
    """

    def __init__(self, name: str, slots: int):
        self._name = name
        self._slots = slots
        self._release = asyncio.Event()

    async def __aenter__(self) -> None:
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold())
        try:
            await asyncio.wait([self._entered], timeout=5.0)
            if not self._entered.done():
                announce.warn(f"All places of the shared limit {self._name} are taken by other runs; waiting for one.")
            await self._entered
        except BaseException:
            self._holding.cancel()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        await self._holding

    async def _hold(self) -> None:
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
    """At most `per_minute` units a minute, evenly: the burst is one second's worth, or the largest single amount."""

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
        async with self._buying:  # a second's worth at once: Prefect takes 10 ms for each time it is asked
            while self._bought < units:
                granted = await _ensure(self._name, int(self._burst), decay=self._per_minute / 60)
                block = min(int(self._burst), granted)
                await rate_limit(self._name, occupy=block, strict=True)
                self._bought += block
            self._bought -= units


_known: dict[str, int] = {}


async def _ensure(name: str, limit: int, decay: float) -> int:
    """Makes the limit where there is none; returns its size, which may be another's choice."""
    if name in _known:
        return _known[name]
    async with get_client() as client:
        try:
            limit = (await client.read_global_concurrency_limit_by_name(name)).limit
        except ObjectNotFound:
            made = GlobalConcurrencyLimitCreate(name=name, limit=limit, slot_decay_per_second=decay)
            with suppress(ObjectAlreadyExists):  # another run made it this very moment
                await client.create_global_concurrency_limit(made)
    _known[name] = limit
    return limit


def leases(server: EnvironmentServer) -> Callable[[], Any]:
    """A place in the limit that concurrent runs against one server share, where there is such a thing."""
    if not (server.shared and shared()):
        return nullcontext
    return partial(Lease, limit_name("sessions", server.url), server.sessions)
