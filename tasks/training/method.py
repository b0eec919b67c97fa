"""A training as one object: what a run, its report and its checks have to know of it.

In: what each training says of itself, beside its stage. Out: `Training`. `tasks/trainings.py` is the only list of them:
flow, preflight, report, page and the GPU stages' flows go through it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.tasks.artifacts.types import Checkpoint, KeptRollouts, LengthStats, Questions, Rollouts
from apprentice.tasks.engine.stage import Stage, StageContext
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.models.memory import Machine, check_training
from apprentice.tasks.settings.training import TrainerSpec

if TYPE_CHECKING:
    from apprentice.tasks.training.forecast import Forecast, Student

S = TypeVar("S", bound=TrainerSpec)


class Lessons(NamedTuple):
    """What a training on rows learns from."""

    rollouts: Rollouts | None
    """As they were played; None where nobody was asked."""
    kept: KeptRollouts
    length_stats: LengthStats


class Task(Protocol):
    """What a training in the environment plays."""

    @property
    def trains_with(self) -> TrainerSpec:
        """The section, with what was found out about the task."""
        ...

    @property
    def environment(self) -> EnvironmentSpec: ...
    @property
    def questions(self) -> Questions: ...
    @property
    def stopped(self) -> str:
        """Why the training does not start; else empty."""
        ...


class RunSoFar(Protocol):
    """What a run has before a training. `lessons` and `task` are made when they are asked for."""

    @property
    def models(self) -> Models[Checkpoint]: ...
    @property
    def seed(self) -> int: ...
    @property
    def lessons(self) -> Lessons: ...
    def task(self, spec: Any) -> Task:
        """What a training by reward plays, with its section."""
        ...


class Start(NamedTuple):
    """What a training's stage is given."""

    spec: TrainerSpec
    inputs: tuple[Any, ...]
    """Artifacts and the rest, as its body takes them after `spec`."""


class Curve(NamedTuple):
    """A metric that the report's page draws."""

    title: str
    signals: tuple[str, ...] = ()
    """Kinds of warnings that are about it."""


@dataclass(frozen=True)
class Training(Generic[S]):
    """A way to train a model."""

    spec: type[S]
    """The recipe's section; it says what of the training depends on settings alone."""
    checkpoint: type[Checkpoint]
    stage: Stage[..., Any]
    start: Callable[[S, RunSoFar], Start | None]
    """What the stage is given; None where there is nothing to train on."""
    arguments: Callable[[StageContext, S, Player, int], dict[str, Any]]
    """Of TRL's config, as the stage gives them, for a seed; what is known later has some value."""
    first_step: Callable[[S, dict[str, Any], Any, list[dict[str, Any]]], None]
    """Makes a step on a toy model. In: the section, its `args`, a tokenizer, the tools' schemas."""
    curves: dict[str, Curve]
    """By metric, in the page's order."""
    forecast: "Callable[[S, int, Student], Forecast] | None" = None
    """Seconds and memory, of a run that collects so many episodes; None where they are not predicted."""
    warning: Callable[[list[dict[str, Any]]], str] = lambda _log: ""
    """What is wrong with a training's log, before the next one begins; empty if nothing."""
    check_machine: Callable[[S, Machine], None] = check_training
    """Raises Stop for hardware or a package that is missing."""

    @property
    def name(self) -> str:
        """Of its section, its stage and its model."""
        return self.spec.section
