"""The context that all stages of a run share: store, servers, location, dispatch of GPU stages.

In: a recipe's store, servers and work pool, assembled by the flow. Out: `RunContext`, every stage's first argument.

Limits that concurrent runs share: an environment server's sessions, a teacher's requests and tokens per minute.

The Trackio folder and project of a run's training curves.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
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
from apprentice.tasks.reporting.announce import StageRun, shared
from apprentice.tasks.reporting.progress import keep_in
from apprentice.tasks.settings.spec import Reporter, StudentSpec, TrackioSpec

LEASE = 60.0
"""Seconds after which Prefect releases the slot of a killed process."""


def limit_name(what: str, url: str, detail: str = "") -> str:
    """A limit's name for the host of `url`, such as sessions-owner-wordle-hf-space."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what} {urlsplit(url).netloc} {detail}".lower()).strip("-")


class Lease:
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
    return partial(Lease, limit_name("sessions", server.url), server.sessions)


FOLDER = "trackio"
"""The folder within the store."""


ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID")
ELSEWHERE += ("TRACKIO_TRACE_SESSIONS_DIR",)
"""Variables by which Trackio sends curves and transcripts elsewhere, or takes some from there."""
_set: set[str] = set()
"""The folders that this process has set."""
_ignored: set[str] = set()
"""What this process has removed, and not said yet."""


def keep_curves_in(store: Path) -> None:
    """Sets Trackio's folder. Call this first: Trackio reads it on import, which TRL's GRPO triggers.

    What the shell says of other places is removed: the recipe decides, by `trackio.space_id`.
    """
    folder = str(store / FOLDER)
    _ignored.update(name for name in ELSEWHERE if os.environ.pop(name, None) is not None)
    if os.environ.get("TRACKIO_DIR", "") not in ("", folder, *_set):
        _ignored.add("TRACKIO_DIR")
    _set.add(folder)
    os.environ["TRACKIO_DIR"] = folder


def say_ignored() -> None:
    """Says once what was removed, before a training sends its curves."""
    if _ignored:
        announce.say(
            f"{' and '.join(sorted(_ignored))} of the shell {'is' if len(_ignored) == 1 else 'are'} ignored: curves go "
            "to the recipe's `trackio.space_id`, or stay in the store."
        )
        _ignored.clear()


def project_in_trackio(project: str) -> str:
    """A project's name in Trackio's files and URLs, which allow no dots, for example.

    Same as Trackio's `canonical_project_name`, without the import, which takes seconds and fixes the folder.
    """
    return "".join(sign for sign in project if sign.isalnum() or sign in "-_") or "default"


class WorkerLocation(NamedTuple):
    """Where a stage ran: a work pool and its worker; empty for a process started by hand."""

    pool: str = ""
    worker: str = ""


THIS_PROCESS = WorkerLocation()


class Dispatched(NamedTuple):
    """The result of a dispatched stage: where it ran, its attempts, its counters."""

    location: WorkerLocation
    attempts: int
    counts: dict[str, float]


Dispatch = Callable[[str, str, dict[str, Any], str], Dispatched]
"""Runs a stage, by name, title, arguments and key, on its work pool; returns when the artifact is in the store."""


class Servers(Protocol):
    """The servers of a run: started at first use, stopped when the run ends."""

    def environment(self, name: str) -> EnvironmentServer: ...

    def teacher(self) -> str | None:
        """The base URL of the teacher's OpenAI-compatible endpoint; None for OpenAI."""
        ...


class StandingServers(NamedTuple):
    """Servers that are already running; picklable, for a stage in another process."""

    environments: dict[str, EnvironmentServer]
    teacher_url: str | None

    def environment(self, name: str) -> EnvironmentServer:
        return self.environments[name]

    def teacher(self) -> str | None:
        return self.teacher_url


class RunContext:
    """The context that all stages of a run share: store, servers, log of stages.

    Args:
        location: Where this process runs.
        dispatch: Runs the GPU stages; without it they run in this process.
        holds_device: Whether this process occupies a device for a dispatched stage, which its dispatcher reports.
        recipe: The recipe, for every artifact's record.
        trackio: Where training curves are logged; default: the store's folder.
        report_to: The experiment trackers that receive the curves.
        trusted: Students whose custom Python code or pickled weights may be loaded.

    Attributes:
        preflight: Called once before the first stage that is not cached, with this context and the stage's name.
    """

    def __init__(
        self,
        store: LocalStore,
        servers: Servers,
        location: WorkerLocation = THIS_PROCESS,
        dispatch: Dispatch | None = None,
        holds_device: bool = False,
        recipe: dict[str, Any] | None = None,
        trackio: TrackioSpec | None = None,
        report_to: Sequence[Reporter] = ("trackio",),
        trusted: Sequence[StudentSpec] = (),
    ):
        self.store = store
        self.servers = servers
        self.location = location
        self.dispatch = dispatch
        self.holds_device = holds_device
        self.recipe = recipe or {}
        self.trackio = trackio or TrackioSpec()
        self.report_to = report_to
        self.trusted = tuple(trusted)
        self.preflight: Callable[[RunContext, str], None] | None = None
        self.log: list[StageRun] = []
        keep_in(store.root, store.project)
        keep_curves_in(store.root)

    def look_ahead(self, stage: str) -> None:
        """Runs the preflight checks before the first stage that is not cached. Raises Stop."""
        preflight, self.preflight = self.preflight, None
        if preflight is not None:
            preflight(self, stage)
