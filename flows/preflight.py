"""Checks in seconds that the stages ahead of a run can succeed.

In: the recipe, the store, the servers. Out: nothing; Stop with cause and remedy before a token is bought or a step is
trained. A run in which every stage is cached checks nothing and starts no server.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost, wait_until_there
from apprentice.flows.audit.audit import audit, found_before
from apprentice.flows.audit.connection import answers
from apprentice.flows.audit.play.audited_episodes import AuditedTask
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.beginning import initial_checkpoint
from apprentice.flows.lessons import judged_rows, to_rescore
from apprentice.flows.prediction import Prediction
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import check_hardware
from apprentice.flows.teacher_check import check_teacher
from apprentice.flows.training_checks import (
    check_adapters,
    check_packages,
    check_thinking,
    check_trainings,
    layers_ahead,
)
from apprentice.tasks.collect import collect
from apprentice.tasks.endpoints.dialect import read_key
from apprentice.tasks.engine.early_imports import import_before_threads
from apprentice.tasks.engine.processes import forget_launcher
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.student_model import check_downloaded, check_rows, named_model, without_weights
from apprentice.tasks.models.tokenizer import check_prompt, load_tokenizer, tokenizer_of
from apprentice.tasks.questions import questions
from apprentice.tasks.relabel import relabel
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import StudentSpec, Window
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.statistics.exact_tests import cannot_pass
from apprentice.tasks.student import student
from apprentice.tasks.training.template import check_template
from apprentice.tasks.training.tracking.reporters import check_reporters

JUDGING = ("verdict", "gate", "release")
"""The last stages; they play no episodes."""
SEEDS = 5
"""Questions to request of each task."""


class PlannedTask(NamedTuple):
    """An environment that the run plays on one server."""

    spec: EnvironmentSpec
    server: EnvironmentServer
    seeds: Sequence[int]
    needs: Needs


@dataclass
class Preflight:
    """Called once, before the first stage that is not cached."""

    recipe: Recipe
    trains_here: bool
    """Whether SFT and GRPO run on this machine."""
    rescore: bool = False
    """Whether rollouts that exist are scored again, whatever changed."""
    prediction: Prediction | None = None
    """Of a pretrained student that is new; made by the call."""

    def __call__(self, run: RunContext, stage: str) -> None:
        """Raise Stop if a check fails. `stage` is the first one that is not cached; `log` has those before it."""
        if stage in JUDGING:
            return
        recipe, done = self.recipe, {each.name for each in run.log}
        if few := cannot_pass(recipe.evaluate.questions, recipe.gate.level):
            announce.warn(
                f"The gate will not promote any model: its exact test's p must be below {recipe.gate.level:.2g}; {few} "
                "(evaluate.questions)."
            )
        windows = recipe.seed_windows()
        ahead = [section for section in recipe.trains_on if section not in done]
        trainings = recipe.trainings_ahead(ahead)
        if self.trains_here and trainings:
            forget_launcher()
            check_hardware({name: spec for name in ahead if (spec := recipe.training(name))})
            check_downloaded(recipe.student)
            check_reporters(recipe.report_to, recipe.name)
        buys = self._teacher_ahead(run, done)
        if buys and not recipe.is_scripted:
            read_key(buys)
        task = recipe.environment.unscaled()
        found = questions.find(run, task, windows, recipe.evaluate.questions)
        initial = initial_checkpoint(run.store, recipe)
        known = found and student.find(run, recipe.student, task, found, recipe.seed)
        new = initial is None and not known
        model = named_model(recipe.student) if new and recipe.student.build is None else None
        import_before_threads()
        with ThreadPoolExecutor(1) as meanwhile:  # the environment's server starts in a process of its own
            if buys:
                meanwhile.submit(run.servers.teacher)
                meanwhile.submit(import_module, "apprentice.tasks.endpoints.endpoint_client")
            if new:
                meanwhile.submit(import_module, "trl.chat_template_utils")
            plays = buys is not None and recipe.collects
            needs = Needs.of(recipe, recipe.training_sessions(ahead), collect=plays)
            processes = max((each.processes for each in trainings), default=1)
            seen = _check_environments(self._tasks(run, needs), processes)
        tokenizer = _check_student(recipe.student, trainings, model, seen) if new else None
        if model is not None and self.trains_here:
            specs = {name: spec for name in recipe.trains_on if (spec := recipe.training(name))}
            self.prediction = Prediction.of(
                *model, recipe.student, specs, recipe.evaluate, windows.collect.size, seen[0]
            )
            if self.prediction:
                self.prediction.say()
        if initial is not None:
            tokenizer = load_tokenizer(run.store.fetch(initial), run.trusted)
            check_thinking(recipe.student, tokenizer, initial.key)
            _check_rendering(initial.key, tokenizer, None, seen)
        check_packages()
        if trainings:
            checkpoint = initial or known or None
            if tokenizer is None and checkpoint is not None:
                tokenizer = load_tokenizer(run.store.fetch(checkpoint), run.trusted)

            layers = partial(layers_ahead, run, recipe.student, model, checkpoint, tokenizer)
            check_adapters(trainings, layers, self.trains_here)
            check_trainings(run, trainings, tokenizer, seen[0].environment, recipe.seed, self.trains_here)
        if buys:
            first = seen[0]
            check_teacher(run, recipe, buys, first.environment, [*zip(first.seeds, first.questions, strict=True)])

    def _teacher_ahead(self, run: RunContext, done: set[str]) -> TeacherSpec | None:
        """Return the teacher that the run will ask; None if it has none, or its rollouts exist or can be rescored."""
        recipe = self.recipe
        if not recipe.buys or recipe.teacher is None or {collect.name, relabel.name} & done:
            return None
        task = recipe.environment.unscaled()
        if not recipe.collects:
            questions_known = questions.find(run, task, recipe.seed_windows(), recipe.evaluate.questions)
            judging = recipe.collect, recipe.teacher, recipe.environment
            return None if questions_known and judged_rows(run, *judging, questions_known) else recipe.teacher
        given = recipe.collect.by_teacher(), recipe.teacher, task, recipe.seed_windows().collect
        found = collect.find(run, *given) or to_rescore(run, collect, given, self.rescore)
        return recipe.teacher if found is None else None

    def _tasks(self, run: RunContext, needs: Needs) -> list[PlannedTask]:
        recipe = self.recipe
        first = recipe.seed_windows().collect
        played = [(spec, first, needs) for spec in [recipe.environment, *recipe.level_environments()]]
        regression_needs = Needs(0, recipe.evaluate.batch_size, 0)
        guards = enumerate(recipe.guards)
        played += [(each.environment, recipe.regression_window(index), regression_needs) for index, each in guards]
        tasks = []
        for spec, window, needed in played:
            server = recipe.server_of(spec.name)
            ours = not (server.url or server.image or server.parts)  # with as many sessions as the recipe needs
            tasks += _planned_tasks(run, spec, window, Needs(0, 0, 0) if ours else needed)
        return tasks


@dataclass
class EvaluationPreflight:
    """The check of `apprentice evaluate`: called before each model's first stage that is not cached; checks once.

    An endpoint's answers are not checked, because the evaluation measures them.
    """

    recipe: Recipe
    window: Window
    checked: bool = False

    def __call__(self, run: RunContext, _stage: str) -> None:
        if not self.checked:
            needs = Needs(0, self.recipe.evaluate.batch_size, 0)
            _check_environments(_planned_tasks(run, self.recipe.environment, self.window, needs))
            self.checked = True


def _check_environments(tasks: Sequence[PlannedTask], processes: int = 1) -> list[AuditedTask]:
    """Raise Stop where a server does not work.

    Args:
        processes: Those of a training: rollouts of several processes take no turns.
    """
    seen: list[AuditedTask] = []
    granted: set[str] = set()
    for task in tasks:
        _wait_for(task.server)
        counted = task.server.url in granted
        needs = Needs(0, 0, 0) if counted else task.needs
        report = audit(Subject(task.server, task.spec, needs, task.seeds), quick=True)
        granted.add(task.server.url)
        for found in found_before(task.spec):
            announce.warn(f"{found} See envs/AUDIT.md.")
        if wrong := report.wrong:
            raise Stop(f"{task.server.url} does not work for {task.spec}: {one_line(wrong.found)[:300]}.", wrong.remedy)
        if processes > 1 and report.granted < needs.train:
            raise Stop(
                f"{task.server.url} grants {report.granted} sessions, and {needs}. Its {processes} processes take no "
                "turns.",
                "Raise max_concurrent_envs on the server, lower grpo.batch_size × grpo.gradient_accumulation, or set "
                "grpo.processes: 1.",
            )
        seen.append(AuditedTask(task.spec, task.spec.make(), task.seeds, report.questions))
    return seen


def _planned_tasks(run: RunContext, spec: EnvironmentSpec, window: Window, needs: Needs) -> list[PlannedTask]:
    """Return what the run plays on the servers of an environment: one task, or one for each part of a mixture."""
    server = run.servers.environment(spec.name)
    if not spec.mixed:
        return [PlannedTask(spec, server, window.seeds()[:SEEDS], needs)]
    mixture = spec.make()
    tasks = []
    for label, part in spec.mixed.items():
        own = (seed for seed in window.seeds() if mixture.part(seed).label == label)
        seeds = list(islice(own, SEEDS)) or window.seeds()[:SEEDS]  # its weight may be too small to be drawn
        tasks.append(PlannedTask(part, server.parts[part.name], seeds, needs))
    return tasks


def _wait_for(server: EnvironmentServer) -> None:
    answered = answers(server)
    if not answered.may_pass:
        return
    try:
        wait_until_there(server, announce.warn)
    except SessionLost as lost:
        raise Stop(f"The environment is out of reach: {one_line(str(lost))[:300]}.", answered.remedy) from lost


def _check_student(
    spec: StudentSpec, trainings: list[TrainerSpec], model: tuple[Any, Any] | None, seen: list[AuditedTask]
) -> Any:
    """Return the tokenizer that the student will have. Raises Stop."""
    if model is None:
        assert spec.build is not None
        texts = [(each.environment, list(each.questions)) for each in seen]
        name, tokenizer, longest = "the student", tokenizer_of(texts, spec.thinking), spec.build.max_positions
    else:
        config, tokenizer = model
        name, longest = str(spec.model), context_length(config)
        layers = without_weights(config, spec)
        check_rows(layers, tokenizer, name)
    for field, room in (each.longest_context for each in trainings if each.longest_context):
        if longest is not None and room > longest:
            raise Stop(
                f"{field} is {room}, and {name} accepts at most {longest} tokens.",
                f"Set it to {longest} or less, or leave it out.",
            )
    _check_rendering(name, tokenizer, longest, seen)
    return tokenizer


def _check_rendering(student: str, tokenizer: Any, longest: int | None, seen: list[AuditedTask]) -> None:
    for each in seen:
        check_template(student, tokenizer, each.environment)
        check_prompt(student, tokenizer, longest, each.environment, each.questions)
