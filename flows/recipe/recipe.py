"""The recipe: one YAML file describes one whole run.

In: the file's data. Out: a frozen, validated `Recipe`.
The recipe of one round of `apprentice improve`: its seed windows, its difficulty level, its gate's level.
"""

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from apprentice.envs.catalog import EnvironmentSpec, policy_of
from apprentice.envs.wire.server import STRICT, EnvironmentServer
from apprentice.flows.recipe.curriculum_levels import levels_of
from apprentice.flows.recipe.sections import (
    BLOCK,
    LONG_RUN,
    SHIFT,
    ImproveSpec,
    RegressionSpec,
    RoundSpec,
    StoreSpec,
    WindowSpecs,
    check_relabelling,
)
from apprentice.tasks.artifacts.foreign.rows import pinned_rows
from apprentice.tasks.artifacts.local import LOCAL
from apprentice.tasks.artifacts.types import LONGEST_NAME, kinds, models_of_a_run
from apprentice.tasks.dpo_settings import DpoSpec
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.models.memory import bf16_pays
from apprentice.tasks.models.student_model import pinned
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.streams import streams_of
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.settings.spec import (
    CollectSpec,
    EvaluateSpec,
    ExportSpec,
    LengthsSpec,
    ProbeSpec,
    SeedWindows,
    Spec,
    StudentSpec,
    Window,
)
from apprentice.tasks.settings.trackers import Reporter, TrackioSpec, hub_name_fault
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.statistics.differences import level_of

TRAINING_SECTIONS = models_of_a_run()[1:]
"""The sections that train a model, in their order; each can be turned off."""


class Recipe(BaseModel):
    """A whole run."""

    model_config = STRICT

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """Name of the repositories: lower case, digits, dots, dashes."""
    seed: int = Field(default=0, ge=0, lt=BLOCK // SHIFT)
    """Seed of weights, data order and sampling. It also shifts the training windows, but not the evaluation window:
    its questions are excluded from all training, so that models of all seeds can be compared on unseen questions."""
    environment: EnvironmentSpec
    server: EnvironmentServer = EnvironmentServer()
    store: StoreSpec = StoreSpec()
    trackio: TrackioSpec = TrackioSpec()
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """What the model computes in. `bf16` turns on `sft.bf16`, `grpo.bf16` and `evaluate.bf16`; `auto` does where this
    machine multiplies matrices faster in it, which is measured once, and for a work pool with GPUs; `fp32` leaves each
    section as it is. Trained weights are fp32 all the same. The sections' choice enters the keys."""
    report_to: list[Reporter] = ["trackio"]
    """Experiment trackers that receive the training curves, such as [trackio, wandb]; no key depends on them. Configure
    Weights & Biases and MLflow with their own environment variables. Where Trackio's curves go is `trackio`'s alone."""
    windows: WindowSpecs
    teacher: TeacherSpec | None = None
    """Not needed where `sft` is off, or where SFT learns from `collect.students` or `collect.dataset`."""
    student: StudentSpec
    collect: CollectSpec = CollectSpec()
    lengths: LengthsSpec = LengthsSpec()
    sft: SftSpec | None = SftSpec()
    """`off`: GRPO begins from the student itself, and no rollouts are collected."""
    probe: ProbeSpec = ProbeSpec()
    grpo: GrpoSpec | None = GrpoSpec()
    """`off`: the SFT model is evaluated and released."""
    dpo: DpoSpec | None = None
    """Off by default. Train further on the pairs that GRPO leaves behind; needs `grpo.keep_groups`."""
    evaluate: EvaluateSpec = EvaluateSpec()
    guards: list[RegressionSpec] = []
    gate: GateSpec = GateSpec()
    export: ExportSpec = ExportSpec()
    improve: ImproveSpec = ImproveSpec()
    round: RoundSpec | None = None

    def seed_windows(self) -> SeedWindows:
        """Return the seeds of each purpose, with the starts that the recipe leaves out."""
        return self.windows.seeds(self.seed, self.environment.questions)

    def at_revision(self, named: str) -> "Recipe":
        """Return the recipe for a revision of its environment's server: `revision`, or `owner/space@revision`.

        Returns it unchanged if `named` is empty or names a Space that it does not use.
        """
        space, at, revision = named.rpartition("@")
        if not revision or (at and space != self.server.space):
            return self
        return self.model_copy(update={"environment": self.environment.model_copy(update={"revision": revision})})

    def with_student_pinned(self) -> "Recipe":
        """Return the recipe with its student pinned to a commit, or to the content of its folder, and rollouts that
        exist to their content. Raises Stop."""
        collect = self.collect
        if collect.dataset is not None:
            collect = collect.model_copy(update={"dataset": pinned_rows(collect.dataset)})
        return self.model_copy(update={"student": pinned(self.student), CollectSpec.section: collect})

    def with_precision(self, gpu: bool = False) -> "Recipe":
        """Return the recipe with `bf16` turned on in its sections, where its precision says so.

        Args:
            gpu: Whether the model is trained on a work pool with GPUs.
        """
        if self.precision == "fp32" or (self.precision == "auto" and not (gpu or bf16_pays())):
            return self
        sections = {name: getattr(self, name) for name in (*TRAINING_SECTIONS, EvaluateSpec.section)}
        return self.model_copy(
            update={name: each.model_copy(update={"bf16": True}) for name, each in sections.items() if each}
        )

    def for_work(self) -> dict[str, Any]:
        """Return the arguments of `RunContext` that come from the recipe."""
        reporting = {"trackio": self.trackio, "report_to": self.report_to}
        return {"recipe": self.for_record(), "trusted": [self.student], **reporting}

    def as_parameters(self, context: Any = None) -> dict[str, Any]:
        """Return the recipe as a deployment's parameters: JSON, without the environments' version and code digest.

        Args:
            context: `Absolute()` makes its paths absolute, and has them then.
        """
        filled = {"environment": {"version", "code"}}
        return self.model_dump(mode="json", context=context, exclude={**filled, "guards": {"__all__": filled}})

    def for_record(self) -> dict[str, Any]:
        """Return the recipe as records store it: without the locations of servers, store and environments."""
        without: Any = {
            "server": True,
            "store": True,
            "trackio": True,
            "report_to": True,
            "environment": {"path"},
            "guards": {"__all__": {"server": True, "environment": {"path"}}},
        }
        whole = self.model_dump(mode="json", exclude=without)
        return whole | {name: value.in_record() for name, value in self if name in whole and isinstance(value, Spec)}

    def server_of(self, environment: str) -> EnvironmentServer:
        """Return an environment's server: the recipe's own, or that of a regression evaluation elsewhere."""
        if environment in (self.environment.name, *(level.name for level in self.level_environments())):
            return self.server
        return next(regression.server for regression in self.guards if regression.environment.name == environment)

    def mixed_in(self, environment: str) -> list[str]:
        """Return the names of the environments in mixtures of that name; empty if it is not a mixture."""
        specs = [self.environment, *self.level_environments(), *(regression.environment for regression in self.guards)]
        return sorted({part.name for spec in specs if spec.name == environment for part in spec.mixed.values()})

    def level_environments(self) -> list[EnvironmentSpec]:
        """Return the environment with the settings of each difficulty level of GRPO; empty without levels.

        For a curriculum it is one: the mixture of all levels.
        """
        own = self.environment.model_dump(exclude={"version", "code"})
        levels = self.grpo.auto_difficulty if self.grpo else []
        curriculum = self.grpo.curriculum if self.grpo else None
        if curriculum and (levels or curriculum.levels):
            digits = len(str(len(levels)))
            name, settings_by_label = own["name"], {f"rung-{n:0{digits}}": each for n, each in enumerate(levels, 1)}
            if curriculum.levels:
                name = "reasoning_gym"
                settings_by_label = levels_of(curriculum.levels, curriculum.most_levels, self._played())
            parts = {label: {"name": name, "settings": settings} for label, settings in settings_by_label.items()}
            task = self.environment
            return [EnvironmentSpec(name="multi", settings={"parts": parts}, revision=task.revision, say=task.say)]
        return [EnvironmentSpec.model_validate(own | {"settings": each}) for each in levels]

    def _played(self) -> list[EnvironmentSpec]:
        """Return the environment, or those of a mixture."""
        return [*self.environment.mixed.values()] or [self.environment]

    @property
    def trains_on(self) -> list[str]:
        """The names of the trainings of a run, in their order."""
        return [name for name in TRAINING_SECTIONS if getattr(self, name) is not None]

    def training(self, name: str) -> TrainerSpec | None:
        """Return the section of a training; None where it is off."""
        return getattr(self, name)

    def curriculum_kinds(self) -> tuple[str, ...] | None:
        """Return what tells the slices of GRPO's curriculum apart; None without one."""
        return self.grpo.curriculum.by if self.grpo and self.grpo.curriculum else None

    def reward_signals(self) -> RewardSignals:
        """Return the thresholds for a task that is too easy or too hard."""
        return self.grpo.signals if self.grpo else RewardSignals()

    def training_episodes(self) -> int:
        """Return how many episodes the trainings play, where their steps are known."""
        specs = [spec for name in self.trains_on if (spec := self.training(name))]
        return sum((spec.steps_known or 0) * spec.sessions() * spec.processes for spec in specs)

    def trainings_ahead(self, ahead: Iterable[str]) -> list[TrainerSpec]:
        """Return the sections of those trainings, and that of a control."""
        found = [spec for name in ahead if (spec := self.training(name))]
        return found + [control for spec in found if (control := spec.to_its_best())]

    def require(self, name: str) -> None:
        """Raise Stop if a training is turned off."""
        if self.training(name) is None:
            raise Stop(f"{self.name} has {name}: off.", "Remove that from the recipe.")

    def only(self, **without: Any) -> "Recipe":
        """Return the recipe for the checks of one stage: without regression evaluations and other stages."""
        return self.model_copy(update={"guards": [], **without})

    @property
    def is_scripted(self) -> bool:
        """Whether a script plays the teacher."""
        return self.teacher is not None and self.teacher.scripted_error_rate is not None

    @property
    def learns_from_rows(self) -> bool:
        """Whether SFT is on."""
        return self.sft is not None

    @property
    def collects(self) -> bool:
        """Whether a teacher plays the collect window."""
        return self.sft is not None and self.teacher is not None and self.collect.dataset is None

    @property
    def buys(self) -> bool:
        """Whether a teacher is asked: it plays, or it judges rows of a dataset, which only round 0 takes."""
        return self.collects or (self.sft is not None and self.collect.relabels and self.round is None)

    @property
    def temperature_of_rollouts(self) -> float:
        """That of the training by reward."""
        return self.grpo.temperature if self.grpo else 1.0

    @property
    def chooses_seeds(self) -> bool:
        """Whether the teacher is asked some of the collect window's questions only."""
        return bool(self.round or self.collect.students or self.collect.teacher_questions)

    def training_sessions(self, names: Iterable[str] | None = None) -> int:
        """Sessions that a training plays at once, over all its processes: the most of those named, or of all."""
        specs = [self.training(name) for name in (self.trains_on if names is None else names)]
        return max((spec.sessions() * spec.processes for spec in specs if spec), default=0)

    def round_of(self, plan: RoundSpec | None, level: int = 0) -> "Recipe":
        """Return the recipe of a round; of round 0, without a plan, with the first level. Raises Stop without seeds.

        Args:
            plan: What the round knows of the rounds before.
            level: Index in `improve.ladder` of the round's difficulty level; ignored without levels.
        """
        changed: dict[str, Any] = {}
        if self.improve.ladder:
            own = self.environment.model_dump(exclude={"version", "code"})
            changed["environment"] = own | {"settings": self.improve.ladder[level]}
        if plan is not None:
            if plan.number >= (lasts := self.rounds_that_fit()):
                raise Stop(
                    f"The seed windows of {self.name} last {lasts} rounds, and all of them were run.",
                    "Give the recipe another name and smaller windows (windows.collect, grpo and evaluate), or move a "
                    "window that overlaps.",
                )
            changed["windows"] = {
                purpose: {"start": window.start + plan.number * window.size, "size": window.size}
                for purpose, window in self.seed_windows()
            }
            changed["round"] = plan.model_dump(mode="json")
            changed["gate"] = self.gate.model_dump(mode="json") | {"level": level_of(plan.number)}
        return Recipe.model_validate(self.as_parameters() | changed) if changed else self

    def rounds_that_fit(self) -> int:
        """Return how many rounds the seed windows last, the first training included."""
        windows = {purpose: window for purpose, window in self.seed_windows()}
        others = [LONG_RUN, *(self.regression_window(index).start for index in range(len(self.guards)))]
        fits = []
        for purpose, window in windows.items():
            ends = [each.start for name, each in windows.items() if name != purpose] + others
            if purpose != "evaluate" and getattr(self.windows, purpose).start is None:
                ends.append(window.start + SHIFT)  # where the windows of the next recipe seed begin
            room = min((end for end in ends if end > window.start), default=10 * BLOCK) - window.start
            fits.append(room // window.size)
        return min(fits)

    def long_run_window(self) -> Window:
        """Return the seeds of the window that no gate reads: twice its questions, as repeated ones are skipped."""
        return Window(start=LONG_RUN, size=2 * max(self.improve.long_run, 1))

    @field_validator(*TRAINING_SECTIONS, mode="before")
    @classmethod
    def _may_be_off(cls, given: Any) -> Any:
        return None if given is False or str(given).lower() in ("off", "false") else given

    @model_validator(mode="after")
    def _has_something_to_learn_from(self) -> "Recipe":
        if not self.trains_on:
            raise ValueError("sft and grpo are both off, so nothing would be trained; turn one of them on")
        specs = self.trainings_ahead(self.trains_on)
        for lack in filter(None, (spec.lacks(specs) for spec in specs)):
            raise ValueError(lack)
        if self.sft and not (self.teacher or self.collect.dataset or self.collect.students):
            raise ValueError(
                "SFT has nothing to learn from: name a teacher, let the student play (collect.students), take rollouts "
                "that exist (collect.dataset), or turn it off (sft: off)"
            )
        check_relabelling(self.collect, self.environment, self.teacher)
        return self

    @model_validator(mode="after")
    def _teach_thoughts_to_a_student_that_thinks(self) -> "Recipe":
        for name in ("teacher", "collect"):  # frozen: filled in before use
            object.__setattr__(self, name, (each := getattr(self, name)) and each.teaching(self.student.thinking))
        return self

    @model_validator(mode="after")
    def _repositories_can_be_named(self) -> "Recipe":
        """Every one, since the longest name is used when the teacher's episodes are paid."""
        namespace = self.store.hub.namespace if self.store.hub else LOCAL
        named = sorted((f"{namespace}/{self.name}-{kind.suffix}" for kind in kinds()), key=len, reverse=True)
        if (length := len(named[0])) > LONGEST_NAME:
            raise ValueError(f"name: {named[0]} has {length} characters, and {LONGEST_NAME} fit; shorten the name")
        for repository in named if self.store.hub else []:
            if fault := hub_name_fault(repository):
                raise ValueError(f"store.hub: change name or namespace, the Hub takes no such repository: {fault}")
        return self

    def regression_window(self, index: int) -> Window:
        """Return the seeds of regression evaluation `index`: twice its questions, as repeated ones are skipped."""
        return Window(start=(len(WindowSpecs.model_fields) + index) * BLOCK, size=2 * self.guards[index].questions)

    @model_validator(mode="after")
    def _regressions_have_names_and_windows_of_their_own(self) -> "Recipe":
        windows = [("guards." + each.name, self.regression_window(index)) for index, each in enumerate(self.guards)]
        for purpose, window in self.seed_windows():
            for name, other in windows:
                if max(window.start, other.start) < min(window.seeds().stop, other.seeds().stop):
                    raise ValueError(f"windows.{purpose} overlaps the seeds of {name} (from {other.start}); move it")
        names = [regression.name for regression in self.guards]
        if len(names) != len(set(names)):
            raise ValueError(f"guards: two regression evaluations have the same name: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _levels_can_be_chosen_from(self) -> "Recipe":
        levels = self.grpo.auto_difficulty if self.grpo else []
        if self.grpo and self.grpo.curriculum and self.grpo.curriculum.levels:
            if {part.name for part in self._played()} != {"reasoning_gym"}:
                raise ValueError("grpo.curriculum: only reasoning_gym has levels; set them in grpo.auto_difficulty")
            if levels:
                raise ValueError("grpo.curriculum.levels and grpo.auto_difficulty both set levels; remove one")
            try:
                levels_of(self.grpo.curriculum.levels, self.grpo.curriculum.most_levels, self._played())
            except ValueError as error:
                raise ValueError(f"grpo.curriculum: {error}") from None
        for index, settings in enumerate(levels):
            try:
                EnvironmentSpec(name=self.environment.name, settings=settings)
            except ValidationError as error:
                raise ValueError(f"grpo.auto_difficulty.{index}: {error.errors()[0]['msg']}") from None
            if settings in levels[:index]:
                raise ValueError(f"grpo.auto_difficulty.{index} repeats an earlier level")
        if levels and self.grpo and self.grpo.curriculum:
            if self.environment.mixed:
                raise ValueError("grpo.curriculum: its kinds are the mixture's environments; take auto_difficulty out")
        elif levels and not self.probe.questions:
            raise ValueError("grpo.auto_difficulty needs a probe to choose: set probe.questions, such as 48")
        return self

    def _played_where(self) -> dict[str, tuple[EnvironmentSpec, EnvironmentServer]]:
        """Return the environments of the recipe and its regression evaluations, by their server's section."""
        own = {"server": (self.environment, self.server)}
        return own | {f"guards.{each.name}.server": (each.environment, each.server) for each in self.guards}

    @model_validator(mode="after")
    def _parts_are_of_a_mixture(self) -> "Recipe":
        for where, (environment, server) in self._played_where().items():
            mixed = self.mixed_in(environment.name)
            if mixed and not server.is_local:
                raise ValueError(f"{where}: a mixture has no server of its own; set those of {where}.parts")
            for name in server.parts:
                if name not in mixed:
                    known = f"known: {', '.join(mixed)}" if mixed else "this is not a mixture"
                    raise ValueError(f"{where}.parts: {name!r} is not an environment of {environment}; {known}")
        return self

    @model_validator(mode="after")
    def _servers_are_one_for_each_environment(self) -> "Recipe":
        known: dict[str, tuple[str, tuple[str, str]]] = {}
        for where, (environment, server) in self._played_where().items():
            if where != "server" and environment.name == self.environment.name and server.is_local:
                continue  # a regression evaluation in the recipe's own environment uses the recipe's server
            servers = {environment.name: (where, server)} if not environment.mixed else {}
            for part in environment.mixed.values():
                servers[part.name] = (f"{where}.parts.{part.name}", server.parts.get(part.name, server))
            for name, (section, there) in servers.items():
                at = there.url, there.image
                other, before = known.setdefault(name, (section, at))
                if before != at:
                    raise ValueError(
                        f"{other} and {section} name two servers for {name}; an environment has one server in a run"
                    )
        return self

    @model_validator(mode="after")
    def _weights_are_of_streams(self) -> "Recipe":
        if self.grpo is None or not self.grpo.reward_weights:
            return self
        known = [stream.called for stream in streams_of(self.environment.make(), self.grpo.reward_weights)]
        for name in [each for each in self.grpo.reward_weights if each not in known]:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"grpo.reward_weights: {self.environment} has no reward stream {name!r}; {hint}")
        return self

    @model_validator(mode="after")
    def _parity_trains(self) -> "Recipe":
        if (protocol := self.evaluate.protocol) != "parity":
            cannot = f"evaluate.protocol {protocol!r} does not see every answer, so a run cannot use it"
            raise ValueError(f"{cannot}; use it with `apprentice evaluate --protocol`")
        return self

    @model_validator(mode="after")
    def _script_exists(self) -> "Recipe":
        if self.is_scripted:
            policy_of(self.environment.name).check(self.environment.settings)
        return self
