"""The context that all stages of a run share: store, servers, location, dispatch of GPU stages.

In: a recipe's store, servers and work pool, assembled by the flow. Out: `RunContext`, every stage's first argument.

The Trackio folder and project of a run's training curves.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.progress import keep_in
from apprentice.tasks.settings.trackers import Reporter, TrackioSpec

if TYPE_CHECKING:
    from apprentice.tasks.settings.spec import StudentSpec

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


def share_curves() -> None:
    """Gives Trackio's databases the modes of the umask: SQLite makes them for the owner, whatever a store's group."""
    if (folder := Path(os.environ.get("TRACKIO_DIR", ""))).is_dir() and folder.name == FOLDER:
        modes_by_umask(folder)


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
