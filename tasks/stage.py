"""What makes a function a stage: its result is named by what made it, looked up before it is made, published whole.

In: a body `body(bench, *settings_and_artifacts) -> counts` that fills `bench.out`.
Out: a callable `stage(work, *settings_and_artifacts) -> Artifact`, run as a Prefect task whose cache key is the
artifact's key. The store is the truth: Prefect's cached result is used only where the store holds the artifact.
"""

import importlib
import inspect
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from prefect import Task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.futures import wait
from pydantic import BaseModel

from apprentice.envs.server import EnvironmentServer
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Artifact, make_key
from apprentice.tasks.cards import write_card
from apprentice.tasks.specs import Spec
from apprentice.tasks.store import LocalStore

A = TypeVar("A", bound=Artifact)
P = ParamSpec("P")
Body = Callable[Concatenate["Bench", P], dict[str, Any]]
PACKAGES = ("torch", "transformers", "trl", "datasets", "openenv-core", "reasoning-gym", "openai", "prefect")


class StageRun(NamedTuple):
    """One line of the run's log."""

    name: str
    state: Literal["ran", "cached"]
    seconds: float
    key: str


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


class Work:
    """What all stages of one run share: the store, the servers, the log of what ran."""

    def __init__(self, store: LocalStore, servers: Servers):
        self.store = store
        self.servers = servers
        self.log: list[StageRun] = []


@dataclass(frozen=True)
class Bench:
    """What one running stage has before it.

    Attributes:
        out: The folder that becomes the artifact.
        scratch: A folder that outlives an interruption, named by the key, so that only the same work finds it.
    """

    work: Work
    key: str
    out: Path
    scratch: Path

    def fetch(self, artifact: Artifact) -> Path:
        return self.work.store.fetch(artifact)


class Stage(Generic[P, A]):
    """A function whose result is an artifact. Call it with the run's `Work` and the body's own arguments."""

    def __init__(self, body: Body[P], gives: type[A], version: int, title: str):
        update_wrapper(self, body)
        self.name = body.__name__
        self.body = body
        self.gives = gives
        self.version = version
        self.title = title
        self._task: Task[..., A] = Task(
            self._perform,
            name=self.name,
            description=inspect.getdoc(body),
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, given: f"{self.name}-{given['key']}"),
            persist_result=True,
            result_serializer="json",
        )

    def __reduce__(self):
        """A process finds a stage where it is defined; its body bears the same name and would be taken for it."""
        return _stage_at, (self.body.__module__, self.name)

    def __call__(self, work: Work, *args: P.args, **kwargs: P.kwargs) -> A:
        key = self.key(args, kwargs)
        found = work.store.find(self.gives, key)
        started = time.perf_counter()
        run = self._task.with_options(refresh_cache=found is None)
        run(work, key, (args, kwargs))
        artifact = found or work.store.find(self.gives, key)
        assert artifact is not None
        work.log.append(StageRun(self.name, "cached" if found else "ran", time.perf_counter() - started, key))
        announce.stage_ended(self._titled(args, kwargs), work.log[-1])
        return artifact

    def map(self, work: Work, given: list[tuple[Any, ...]]) -> list[A]:
        """The stage for every tuple of arguments, as tasks on the flow's task runner; results in order.

        Whatever `work` holds must be picklable where the runner is not made of threads. Raises the first exception,
        after all tasks have ended.
        """
        futures = []
        for args in given:
            key = self.key(args, {})
            run = self._task.with_options(refresh_cache=work.store.find(self.gives, key) is None)
            futures.append(run.submit(work, key, (args, {})))
        wait(futures)
        return [future.result() for future in futures]

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return make_key(self.name, self.version, *self.made_from(args, kwargs))

    def made_from(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """What enters the key: every setting as JSON, and every input artifact's revision."""
        settings: dict[str, Any] = {}
        inputs: dict[str, str] = {}
        for name, value in list(self._bound(args, kwargs).items())[1:]:
            if isinstance(value, Artifact):
                inputs[name] = value.revision
            elif isinstance(value, dict) and value and all(isinstance(each, Artifact) for each in value.values()):
                inputs |= {f"{name}.{which}": artifact.revision for which, artifact in value.items()}
            elif isinstance(value, Spec):
                settings[name] = value.in_key()
            elif isinstance(value, BaseModel):
                settings[name] = value.model_dump(mode="json")
            else:
                settings[name] = value
        return settings, inputs

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = inspect.signature(self.body).bind(None, *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _titled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The title with the arguments that it names, such as "Evaluation of {checkpoint.stage}"."""
        return self.title.format(**self._bound(args, kwargs))

    def _perform(self, work: Work, key: str, given: tuple[Any, Any]) -> A:
        args, kwargs = given
        found = work.store.find(self.gives, key)
        if found is not None:
            return found
        settings, inputs = self.made_from(args, kwargs)
        made_by = {
            "stage": self.name,
            "version": self.version,
            "settings": settings,
            "inputs": inputs,
            "packages": {name: installed(name) for name in PACKAGES},
        }
        announce.stage_starts(self._titled(args, kwargs))
        scratch = work.store.root / ".scratch" / f"{self.name}-{key}"
        with work.store.staging() as out:
            scratch.mkdir(parents=True, exist_ok=True)
            body: Callable[..., dict[str, Any]] = self.body
            counts = body(Bench(work, key, out, scratch), *args, **kwargs)
            write_card(out, self.gives, work.store.repository(self.gives), counts, made_by)
            artifact = work.store.publish(self.gives, key, out, counts, made_by)
        shutil.rmtree(scratch)
        return artifact


def stage(gives: type[A], version: int, title: str) -> Callable[[Body[P]], Stage[P, A]]:
    """Makes a stage of a body. Raise `version` when the body, or a helper of it, gives something else than before."""
    return lambda body: Stage(body, gives, version, title)


def _stage_at(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
