"""Before a run makes anything: whether what is ahead of it can be done, found out in seconds.

In: the recipe, the store, the servers. Out: nothing; Stop with cause and remedy before a token is bought or a step is
trained. A run in which everything is cached makes nothing, so it looks at nothing and starts no server.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import SessionLost, wait_until_there
from apprentice.flows.preflight_teacher import check_teacher
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.environment_check import Needs, answers, check
from apprentice.flows.runtime.hardware import check_hardware
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.models.chat_template import check_prompt
from apprentice.tasks.models.student_model import named_model
from apprentice.tasks.models.tokenizer import tokenizer_of
from apprentice.tasks.players.teacher import read_key
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import StudentSpec, Window
from apprentice.tasks.student import student

JUDGING = ("verdict", "gate", "release")
"""Stages from which on nothing is played."""
SEEDS = 5
"""Questions that are asked of each task."""


class TrainedQuestions(NamedTuple):
    """An environment with questions of its own."""

    environment: ToolEnvironment
    seeds: Sequence[int]
    questions: Sequence[str]


class Task(NamedTuple):
    """What the run plays on one server."""

    spec: EnvironmentSpec
    server: EnvironmentServer
    seeds: Sequence[int]
    needs: Needs


class Preflight:
    """Called once, before the first stage that has to be made.

    Args:
        trains_here: Whether the trainings run on this machine.
    """

    def __init__(self, recipe: Recipe, trains_here: bool):
        self._recipe = recipe
        self._trains_here = trains_here

    def __call__(self, work: RunContext, stage: str) -> None:
        """Raises Stop. `stage`: the first one that has to be made; those before it are in the work's log."""
        if stage in JUDGING:
            return
        recipe, done = self._recipe, {run.name for run in work.log}
        windows = recipe.seed_windows()
        ahead = [section for section in ("sft", "grpo") if section not in done]
        if self._trains_here:
            check_hardware(recipe, ahead)
        buys = collect.find(work, recipe.collect, recipe.teacher, recipe.environment, windows.collect) is None
        if buys and recipe.teacher.scripted_error_rate is None:
            read_key(recipe.teacher)
        asked = questions.find(work, recipe.environment, windows, recipe.evaluate.questions)
        begins = asked is None or student.find(work, recipe.student, recipe.environment, asked, recipe.seed) is None
        model = named_model(recipe.student) if begins and recipe.student.build is None else None
        seen = self._check_environments(work, Needs.of(recipe, grpo="grpo" in ahead, collect=buys))
        if begins:
            _check_student(recipe.student, model, seen)
        if buys:
            check_teacher(work, recipe, seen[0].environment, seen[0].seeds[0], seen[0].questions[0])

    def _check_environments(self, work: RunContext, needs: Needs) -> list[TrainedQuestions]:
        """Of every server that the run plays on, the recipe's own first."""
        seen: list[TrainedQuestions] = []
        granted: set[str] = set()
        for task in self._tasks(work, needs):
            _wait_for(task.server)
            counted = task.server.url in granted
            checked = check(task.server, task.spec, Needs(0, 0, 0) if counted else task.needs, task.seeds)
            granted.add(task.server.url)
            if wrong := checked.wrong:
                raise Stop(f"{task.server.url} will not do for {task.spec}: {_line(wrong.found)}.", wrong.fix)
            seen.append(TrainedQuestions(task.spec.make(), task.seeds, checked.questions))
        return seen

    def _tasks(self, work: RunContext, needs: Needs) -> list[Task]:
        recipe = self._recipe
        first = recipe.seed_windows().collect
        tasks = [task for spec in [recipe.environment, *recipe.rungs()] for task in _parts(work, spec, first, needs)]
        of_guards = Needs(0, recipe.evaluate.batch_size, 0)
        for place, guard in enumerate(recipe.guards):
            tasks += _parts(work, guard.environment, recipe.guard_window(place), of_guards)
        return tasks


def _parts(work: RunContext, spec: EnvironmentSpec, window: Window, needs: Needs) -> list[Task]:
    """One task; of a mixture one for each of its environments."""
    server = work.servers.environment(spec.name)
    if not spec.mixed:
        return [Task(spec, server, window.seeds()[:SEEDS], needs)]
    mixture = spec.make()
    tasks = []
    for label, part in spec.mixed.items():
        own = (seed for seed in window.seeds() if mixture._part(seed).label == label)
        seeds = list(islice(own, SEEDS)) or window.seeds()[:SEEDS]  # one of so little weight that it is never drawn
        tasks.append(Task(part, server.parts[part.name], seeds, needs))
    return tasks


def _wait_for(server: EnvironmentServer) -> None:
    """Returns when the server answers, for which one is patient as in any outage. Raises Stop."""
    answered = answers(server)
    if not answered.may_pass:
        return
    try:
        wait_until_there(server, announce.warn)
    except SessionLost as lost:
        raise Stop(f"The environment is out of reach: {_line(str(lost))}.", answered.fix) from lost


def _check_student(spec: StudentSpec, model: tuple[Any, Any] | None, seen: list[TrainedQuestions]) -> None:
    """Renders the questions with the student's template. Raises Stop."""
    if model is None:
        assert spec.build is not None
        texts = [(each.environment, list(each.questions)) for each in seen]
        name, tokenizer, longest = "the student", tokenizer_of(texts), spec.build.max_positions
    else:
        config, tokenizer = model
        name, longest = str(spec.model), getattr(config, "max_position_embeddings", None)
    for each in seen:
        check_prompt(name, tokenizer, longest, each.environment, each.questions)


def _line(text: str) -> str:
    """What a server said, on one line that a person still reads."""
    return " ".join(text.split())[:300]
