"""Turns a function into a stage: its result is an artifact, cached by a key of all inputs and published atomically.

In: a body `body(context, *settings_and_artifacts) -> counts` that fills `context.out`.
Out: a callable `stage(run, *settings_and_artifacts) -> Artifact`, within a flow run as a Prefect task whose cache key
is the artifact's key. The store decides on cache hits: Prefect's cached result counts only if the store has the
artifact. Outside of a flow run the same is called directly, and Prefect is not imported.
"""

import inspect
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, update_wrapper
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.metadata import version as installed
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from apprentice.envs.defaults import old_objects_ignored
from apprentice.envs.wire.metrics import count, counted
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import Artifact, InKey, make_key
from apprentice.tasks.engine.early_imports import import_before_threads
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.announce import StageRun
from apprentice.tasks.reporting.failures import failure_of
from apprentice.tasks.reporting.progress import of_stage
from apprentice.tasks.settings.spec_base import Spec

if TYPE_CHECKING:
    from prefect import Task
    from prefect.tasks import MaterializingTask

A = TypeVar("A", bound=Artifact)
P = ParamSpec("P")
Body = Callable[Concatenate["StageContext", P], dict[str, Any]]
PACKAGES = ("torch", "transformers", "trl", "datasets", "openenv-core", "reasoning-gym", "openai", "prefect")


RETRIES = 3
"""Maximum retries of a stage after a temporary failure, after 5, 10 and 20 s plus up to half as much."""
RETRY_DELAY = 5.0
"""Seconds before the first one."""


class Drawn(NamedTuple):
    """How the picture of a run shows a stage."""

    box: str
    """The title of its box, which several stages may share."""
    counted: str = ""
    """The artifact's count that stands on the arrows from it."""
    what: str = ""
    """What that counts."""
    is_aside: bool = False
    """Whether the box stands beside the main line."""


@dataclass(frozen=True)
class StageContext:
    """The context of one running stage.

    Attributes:
        out: The folder that becomes the artifact.
        scratch: A folder named by the key that survives an interruption, for resuming the same stage.
    """

    run: RunContext
    key: str
    out: Path
    scratch: Path

    def fetch(self, artifact: Artifact) -> Path:
        return self.run.store.fetch(artifact)


class Stage(Generic[P, A]):
    """A function whose result is an artifact. Call it with the `RunContext` and the body's arguments."""

    def __init__(self, body: Body[P], produces: type[A], version: int, title: str, gpu: bool, drawn: Drawn | None):
        update_wrapper(self, body)
        self.name = body.__name__
        self.body = body
        self.produces = produces
        self.version = version
        self.title = title
        self.gpu = gpu
        self.drawn = drawn or Drawn(self.name)

    @cached_property
    def _task(self) -> "MaterializingTask[..., A]":
        """Made within a flow run only: a GPU machine that runs no flow needs no Prefect."""
        from prefect.cache_policies import CacheKeyFnPolicy
        from prefect.tasks import MaterializingTask, exponential_backoff

        return MaterializingTask(
            self._make,
            assets=(),
            name=self.name,
            description=inspect.getdoc(self.body),
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, given: f"{self.name}-{given['key']}"),
            persist_result=True,
            result_serializer="json",
            retries=RETRIES,
            retry_delay_seconds=exponential_backoff(RETRY_DELAY),
            retry_jitter_factor=0.5,
            retry_condition_fn=lambda _task, _run, state: _is_temporary(state.result(raise_on_failure=False)),
        )

    def __reduce__(self):
        """Pickles the stage by module and name; pickle would otherwise confuse it with its body of the same name."""
        return resolve_name, (f"{self.body.__module__}:{self.name}",)

    def __call__(self, run: RunContext, *args: P.args, **kwargs: P.kwargs) -> A:
        key = self.key(args, kwargs)
        title = self._titled(args, kwargs)
        found, made = self.find(run, *args, **kwargs), None
        with counted() as counts:  # of a dispatched stage the waiting times in this process
            if found is None:
                run.look_ahead(self.name)
            started, more = time.perf_counter(), {}
            if found is None and self.gpu and run.dispatch is not None:
                location, attempts, more = run.dispatch(self.name, title, self._bound(args, kwargs), key)
            else:
                location, attempts = run.location, 1
                made = self._made(run, key, (args, kwargs), found)
                if self.gpu and found is None:
                    more = {"device_s": time.perf_counter() - started}
        counts |= {name: counts.get(name, 0) + value for name, value in more.items()}
        artifact = found or made or run.store.find(self.produces, key)
        assert artifact is not None
        seconds = time.perf_counter() - started
        ended = StageRun(self.name, "cached" if found else "ran", seconds, key, title, *location, attempts, counts)
        run.log.append(ended)
        announce.stage_ended(title, ended, artifact.figure, emit=not run.holds_device)
        return artifact

    def titled(self, title: str) -> "Stage[P, A]":
        """The same stage under another title, to distinguish several uses in a run."""
        return Stage(self.body, self.produces, self.version, title, self.gpu, self.drawn)

    def map(self, run: RunContext, given: list[tuple[Any, ...]]) -> list[A]:
        """Runs the stage for every tuple of arguments as tasks on the flow's task runner; returns results in order.

        `run` must be picklable unless the task runner uses threads. Raises the first exception, after all tasks ended.
        Outside of a flow, which has the task runner, one after another.
        """
        if not announce.in_prefect():
            return [self._made(run, self.key(args, {}), (args, {})) for args in given]
        from prefect.futures import wait

        import_before_threads()
        futures = []
        for args in given:
            key = self.key(args, {})
            task = self._task_for(run, key, (args, {}), run.store.find(self.produces, key))
            futures.append(task.submit(run, key, (args, {})))
        wait(futures)
        return [future.result() for future in futures]

    def _made(self, run: RunContext, key: str, given: tuple[Any, Any], found: A | None = None) -> A:
        if announce.in_prefect():
            return self._task_for(run, key, given, found)(run, key, given)
        if found is not None:
            return found
        again = Retrying(
            retry=retry_if_exception(_is_temporary),
            stop=stop_after_attempt(RETRIES + 1),
            wait=wait_exponential_jitter(RETRY_DELAY, jitter=RETRY_DELAY),
            reraise=True,
        )
        return again(self._make, run, key, given)

    def _task_for(self, run: RunContext, key: str, given: tuple[Any, Any], found: A | None) -> "Task[..., A]":
        made, made_from = announce.assets(
            run.store.address(self.produces, key),
            [run.store.address(type(each), each.key) for each in self.inputs(*given).values()],
        )
        return self._task.with_options(
            assets=made,
            asset_deps=made_from,
            task_run_name=f"{run.store.project}: {self._titled(*given)} · {key[:8]}",
            refresh_cache=found is None,
        )

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return make_key(self.name, self.version, *self.key_contents(args, kwargs))

    def find(self, run: RunContext, *args: P.args, **kwargs: P.kwargs) -> A | None:
        """The cached artifact, or None; also one whose key still had what only the record has now."""
        earlier = make_key(self.name, self.version, *self.key_contents(args, kwargs, recorded=True))
        key = self.key(args, kwargs)
        found = run.store.find(self.produces, key)
        return found if found is not None or earlier == key else run.store.find(self.produces, earlier)

    def scratch(self, run: RunContext, key: str) -> Path:
        return run.store.root / ".scratch" / f"{self.name}-{key}"

    def key_contents(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: bool = False
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The contents of the key: every setting as JSON, and every input artifact's revision.

        Args:
            recorded: As the record has the settings: with the address of an endpoint, which is not part of the key.
        """
        settings: dict[str, Any] = {}
        inputs = {name: artifact.revision for name, artifact in self.inputs(args, kwargs).items()}
        for name, value in self._given(args, kwargs):
            if _artifacts_in(name, value):
                continue
            if recorded and isinstance(value, Spec):
                settings[name] = value.in_made_by()
            else:
                settings[name] = value.in_key() if isinstance(value, InKey) else value
        return settings, inputs

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Artifact]:
        """The artifacts among the arguments by name; those in a dictionary as `argument.key`."""
        return {name: each for given in self._given(args, kwargs) for name, each in _artifacts_in(*given).items()}

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        return list(self._bound(args, kwargs).items())[1:]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = inspect.signature(self.body).bind(None, *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _titled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.title.format(**self._bound(args, kwargs))

    def _make(self, run: RunContext, key: str, given: tuple[Any, Any]) -> A:
        """The body of the task: makes the artifact unless another process has made it in the meantime."""
        args, kwargs = given
        name = f"{self.name}-{key}"
        exclusive = run.store.exclusive(name, announce.warn, wait=not run.holds_device)
        with of_stage(self.name, key), exclusive as lease:
            if (found := run.store.find(self.produces, key)) is not None:
                return found
            made_by, provenance = self._record(run, args, kwargs)
            scratch = self.scratch(run, key)
            with announce.stage_running(self._titled(args, kwargs)), run.store.staging(name, lease.is_held) as out:
                scratch.mkdir(parents=True, exist_ok=True)
                body: Callable[..., dict[str, Any]] = self.body
                with old_objects_ignored():
                    counts = body(StageContext(run, key, out, scratch), *args, **kwargs)
                lease.check()
                artifact = run.store.publish(self.produces, key, out, counts, made_by, provenance)
            announce.materialized(run.store.address(self.produces, key), artifact.model_dump(mode="json"))
            if lease.is_held():
                shutil.rmtree(scratch)
            return artifact

    def _record(self, run: RunContext, args: Any, kwargs: Any) -> tuple[dict[str, Any], Provenance]:
        settings, inputs = self.key_contents(args, kwargs, recorded=True)
        made_by = {
            "stage": self.name,
            "version": self.version,
            "settings": settings,
            "inputs": inputs,
            "packages": {name: installed(name) for name in PACKAGES},
        }
        provenance = Provenance(
            stage=f"{self.body.__module__}:{self.name}",
            code=code_version(),
            recipe=run.recipe,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            pool=run.location.pool,
            worker=run.location.worker,
            inputs={name: parent(artifact) for name, artifact in self.inputs(args, kwargs).items()},
        )
        return made_by, provenance


def stage(
    produces: type[A], version: int, title: str, drawn: Drawn | None = None, gpu: bool = False
) -> Callable[[Body[P]], Stage[P, A]]:
    """Decorates a body as a stage.

    Args:
        version: Raise it when the body, or a function it calls, gives another result than before.
        drawn: How it is shown in the picture of a run.
        gpu: Run the stage on a GPU work pool where the recipe names one.
    """
    return lambda body: Stage(body, produces, version, title, gpu, drawn)


def _artifacts_in(name: str, value: Any) -> dict[str, Artifact]:
    if isinstance(value, Artifact):
        return {name: value}
    if isinstance(value, dict) and value and all(isinstance(each, Artifact) for each in value.values()):
        return {f"{name}.{which}": artifact for which, artifact in value.items()}
    return {}


def _is_temporary(error: Any) -> bool:
    if not isinstance(error, Exception) or (failure := failure_of(error)).remedy != "retry":
        return False
    announce.warn(f"The {failure.boundary} failed ({type(error).__name__}); trying again.")
    count("retries")
    return True


@cache
def code_version() -> str:
    """The commit of this code, "with changes" where files of it differ from that; its version where it is a package."""
    try:
        package: Distribution | None = distribution("openenv-apprentice")
    except PackageNotFoundError:
        package = None
    return version_of(Path(__file__).resolve().parents[2], package)


def version_of(folder: Path, package: Distribution | None) -> str:
    """The version of code in a folder, which may be a checkout, and was perhaps installed as a package."""
    software = "apprentice" if package is None else f"apprentice {package.version}"
    if (folder / ".git").exists():
        commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
        if commit is not None:
            return f"{software}, commit {commit}{', with changes' if changes else ''}"
    source = json.loads((package and package.read_text("direct_url.json")) or "{}")
    commit = source.get("vcs_info", {}).get("commit_id")
    return f"{software}, commit {commit}" if commit else software


def _git(folder: Path, *command: str) -> str | None:
    """What git says; None without git, or for a folder of another user, whom it does not trust."""
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
