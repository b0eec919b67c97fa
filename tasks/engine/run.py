"""What all stages of one run share: store, servers, where it runs, how a GPU stage is sent elsewhere.

In: a recipe's store, servers and pool, put together by the flow. Out: `RunContext`, the first argument of every stage.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.curves import keep_curves_in
from apprentice.tasks.reporting.log import keep_in
from apprentice.tasks.settings.stages import Reporter, StudentSpec, TrackioSpec


class WorkerLocation(NamedTuple):
    """Where a stage ran: a work pool and one of its workers; empty for the process that a person started."""

    pool: str = ""
    worker: str = ""


THIS_PROCESS = WorkerLocation()


class Dispatched(NamedTuple):
    """What a stage that ran elsewhere tells of it."""

    place: WorkerLocation
    attempts: int
    counts: dict[str, float]


class Dispatch(Protocol):
    """Runs a stage where its device is; returns once the artifact is in the store."""

    def __call__(self, stage: str, title: str, given: dict[str, Any], key: str) -> Dispatched: ...


class Servers(Protocol):
    """What a stage can ask for while it runs: started when first asked for, stopped when the run ends."""

    def environment(self, name: str) -> EnvironmentServer:
        """The server of the environment of that name."""
        ...

    def teacher(self) -> str | None:
        """The base URL of the teacher's OpenAI-compatible endpoint; None for OpenAI's own."""
        ...


class StandingServers(NamedTuple):
    """Servers that run already: what a stage in another process is told about them."""

    environments: dict[str, EnvironmentServer]
    teacher_url: str | None

    def environment(self, name: str) -> EnvironmentServer:
        return self.environments[name]

    def teacher(self) -> str | None:
        return self.teacher_url


class RunContext:
    """What all stages of one run share: the store, the servers, the log of what ran.

    Args:
        place: Where this process runs.
        dispatch: Runs the GPU stages; they run here when left out.
        holds_device: A device waits with this process, and whoever dispatched it tells of it.
        recipe: What is written beside every artifact of how the whole run was meant.
        trackio: Where the curves of trainings grow; in the store's folder when left out.
        report_to: Who is sent them.
        trusted: The students whose Python code, or whose pickled weights, may be loaded, as whoever runs this says.

    Attributes:
        preflight: Called once, with this and the name of the first stage that has to be made, before it is.
    """

    def __init__(
        self,
        store: LocalStore,
        servers: Servers,
        place: WorkerLocation = THIS_PROCESS,
        dispatch: Dispatch | None = None,
        holds_device: bool = False,
        recipe: dict[str, Any] | None = None,
        trackio: TrackioSpec | None = None,
        report_to: Sequence[Reporter] = ("trackio",),
        trusted: Sequence[StudentSpec] = (),
    ):
        self.store = store
        self.servers = servers
        self.place = place
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
        """Before `stage` is made. Raises Stop."""
        preflight, self.preflight = self.preflight, None
        if preflight is not None:
            preflight(self, stage)
