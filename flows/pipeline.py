"""The stages of a run, in the order in which they need one another.

In: a recipe, the run's work. Out: artifacts; each is found or made when it is asked for first.
"""

from functools import cached_property
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.beginning import initial_checkpoint, new_student, question_set
from apprentice.flows.learned_scale import has_unknown_scale, with_learned_scale
from apprentice.flows.lessons import lessons_of, rollouts_of, warn_of_limits
from apprentice.flows.probe import Level, Probed, probe, trainable_levels
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.types import Checkpoint, Evaluation, ModelName, Questions, Rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.judgement.model_names import LABELS
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.questions import exam
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.spec import EvaluateSpec, Purpose
from apprentice.tasks.training.method import Lessons
from apprentice.tasks.training.trainer import read_log
from apprentice.tasks.trainings import TRAININGS


class Pipeline:
    """A run in progress.

    Attributes:
        learned_from: The rows of SFT; None before it, and without it.
        probed: The task of a training by reward, with the rates behind its choice; None likewise.
    """

    def __init__(self, run: RunContext, recipe: Recipe, rescore: bool = False, base: Checkpoint | None = None):
        """`base`: the model to train, in place of the recipe's student."""
        self.run = run
        self.recipe = recipe
        self.seed = recipe.seed
        self.learned_from: Lessons | None = None
        self.probed: Probed | None = None
        self._rescore = rescore
        self._base = base
        self._models: Models[Checkpoint] | None = None

    @cached_property
    def questions(self) -> Questions:
        """The questions of the run, for collection, training and evaluation."""
        return question_set(self.run, self.recipe)

    def learn_scale(self) -> None:
        """Learn from the teacher's rollouts which reward counts as right, where nothing says it."""
        recipe = self.recipe
        if not has_unknown_scale(recipe.environment) or not recipe.collects or recipe.chooses_seeds:
            return
        _ = self.questions  # whether the task can be used at all is found out before anything is bought
        if (rollouts := rollouts_of(self.run, recipe, self.questions)) is not None:
            learned = with_learned_scale(recipe.environment, self.run.store.fetch(rollouts))
            self.recipe = recipe.model_copy(update={"environment": learned})

    @cached_property
    def levels(self) -> list[Level]:
        """The tasks that a training by reward can play. Raises Stop for one that has too few questions."""
        recipe = self.recipe
        own, tasks = Level(recipe.environment, self.questions), recipe.level_environments()
        window = recipe.seed_windows().of(Purpose.TRAIN)
        excluded = self.regression_questions if tasks else {}
        return trainable_levels(self.run, own, tasks, window, excluded, recipe.curriculum_kinds())

    @property
    def models(self) -> Models[Checkpoint]:
        """The models that the run has; at first the one to train."""
        if self._models is None:
            recipe = self.recipe
            base = self._base or initial_checkpoint(self.run.store, recipe)
            if base is None:
                task = recipe.environment.unscaled()
                base = new_student(self.run, recipe.student, task, self.questions, self.seed)
            self._models = Models({ModelName.BASE: base})
        return self._models

    @property
    def lessons(self) -> Lessons:
        """The rollouts of teacher, dataset or student, filtered and measured."""
        if self.learned_from is None:
            given = self.run, self.recipe, self.questions, self.models.base
            self.learned_from = lessons_of(*given, self._rescore)
            if self.run.log[-1].state == "ran":
                ahead = [each for name in self.recipe.trains_on if (each := self.recipe.training(name))]
                sections = self.recipe.evaluate, ahead, self.recipe.student.thinking
                warn_of_limits(self.run, *sections, self.learned_from, self.models.base)
        return self.learned_from

    def task(self, spec: Any) -> Probed:
        """Return the level that the last model finds neither too easy nor too hard for a training by reward."""
        if self.probed is None:
            recipe = self.recipe
            given = spec, self.levels, self.models.last, self.seed
            self.probed = probe(self.run, recipe.probe, recipe.evaluate.batch_size, *given)
        return self.probed

    def train(self) -> Models[Checkpoint]:
        """Train the model by one method after the other; return all models."""
        ahead = [training for training in TRAININGS if self.recipe.training(training.name)]
        for place, training in enumerate(ahead):
            spec = self.recipe.training(training.name)
            start = training.start(spec, self)
            if start is None:
                continue
            self.models[training.name] = training.stage(self.run, start.spec, *start.inputs)
            if warning := training.warning(read_log(self.run.store.fetch(self.models[training.name]))):
                announce.warn(warning)
            if ahead[place + 1 :] and (control := start.spec.to_its_best()):
                stage = training.stage.titled(LABELS[ModelName.CONTROL])
                self.models[ModelName.CONTROL] = stage(self.run, control, *start.inputs)
        return self.models

    def held_out(self, models: dict[str, Checkpoint]) -> Models[Evaluation]:
        """Evaluate models on the held-out questions; return the evaluations by model."""
        plain, found = self.recipe.evaluate, Models[Evaluation]()
        for name, model in models.items():
            spec = plain.of_untrained() if name == ModelName.BASE else plain
            found[name] = self._evaluated(f"Evaluation of {name}", spec, model)
        return found

    def _evaluated(self, title: str, spec: EvaluateSpec, model: Checkpoint) -> Evaluation:
        stage = evaluate.titled(f"{title} in {{environment}}")
        return stage(self.run, spec, model, self.recipe.environment, self.questions, self.seed)

    @cached_property
    def regression_questions(self) -> dict[str, Questions]:
        """The questions of every regression evaluation, by its name."""
        return {
            each.name: exam(self.run, each.environment, self.recipe.regression_window(index), each.questions)
            for index, each in enumerate(self.recipe.guards)
        }

    def regressions(self, models: dict[str, Checkpoint]) -> dict[str, Evaluation]:
        """Run every regression evaluation with every model; return the evaluations by `<guard>.<model>`."""
        evaluations, plain = {}, self.recipe.evaluate
        for regression in self.recipe.guards:
            tokens = regression.max_new_tokens or plain.max_new_tokens
            spec = plain.model_copy(update={"max_new_tokens": tokens, "questions": regression.questions})
            for name, model in models.items():
                stage = evaluate.titled(f"Regression evaluation {regression.name}: {name}")
                evaluations[f"{regression.name}.{name}"] = stage(
                    self.run, spec, model, regression.environment, self.regression_questions[regression.name], self.seed
                )
        return evaluations

    def thoughts(self, model: Checkpoint) -> dict[str, Evaluation]:
        """Evaluate a model that thinks within parts of its budget, with other thoughts, and in several samples for a
        vote; return the evaluations by share of the budget and by name. Empty where the recipe asks for none."""
        ahead = self.recipe.evaluate.of_thoughts(self.recipe.student.thinking is not None)
        return {
            name: self._evaluated(f"Evaluation of the thoughts ({name})", spec, model) for name, spec in ahead.items()
        }

    def for_verdict(self) -> tuple[EnvironmentSpec, Rollouts | None, Checkpoint, float, str]:
        """Return what a verdict takes beside the evaluations: what was bought and played, and how it was trained."""
        last = self.recipe.training(self.recipe.trains_on[-1])
        return (
            self.recipe.environment,
            self.learned_from.rollouts if self.learned_from else None,
            self.models.last,
            last.kl_weight if last else 0.0,
            self.probed.stopped if self.probed else "",
        )

    def protected(self) -> str:
        """Return the baseline of the regression evaluations if there is no champion: the student, or the first trained
        model if the student was built here and was trained further, because random weights have no skill to lose."""
        first = self.recipe.trains_on[0]
        is_built = self.models.base.stage == ModelName.BASE and self.recipe.student.build is not None
        return first if is_built and self.models.last_name != first else ModelName.BASE
