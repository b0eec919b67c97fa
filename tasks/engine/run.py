"""The context that all stages of a run share: store, servers, location, dispatch of GPU stages.

In: a recipe's store, servers and work pool, assembled by the flow. Out: `RunContext`, every stage's first argument.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.trackio_folder import keep_curves_in
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.progress import keep_in
from apprentice.tasks.settings.trackers import Reporter, TrackioSpec

if TYPE_CHECKING:
    from apprentice.tasks.settings.spec import StudentSpec


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
        trusted: "Sequence[StudentSpec]" = (),
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
