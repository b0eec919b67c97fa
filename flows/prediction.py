"""What a pretrained student's run takes on this machine, said before it begins, and again once its rows are known.

In: the recipe, the student, what the environment asks; later the kept rollouts. Out: a sentence.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import next_work
from apprentice.flows.audit.play.audited_episodes import AuditedTask
from apprentice.tasks.episodes.episode import Call, prompt
from apprentice.tasks.episodes.thinking import thinking_of
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.models.student_model import without_weights
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.spec import EvaluateSpec, StudentSpec
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.training import forecast
from apprentice.tasks.training.task_texts import Texts
from apprentice.tasks.trainings import training_of

MEASURED = 64
"""Kept rows that a prediction is made of."""


@dataclass
class Prediction:
    """How long the stages of a pretrained student take, and how much memory, where that can be measured.

    Args:
        specs: The settings of the trainings, by name.
        episodes: Rows that there will be, at most.
        student: With the texts that are assumed.
    """

    specs: dict[str, TrainerSpec]
    evaluation: EvaluateSpec
    episodes: int
    student: forecast.Student

    @staticmethod
    def of(
        config: Any,
        tokenizer: Any,
        student: StudentSpec,
        specs: dict[str, TrainerSpec],
        evaluation: EvaluateSpec,
        episodes: int,
        asked: AuditedTask,
    ) -> "Prediction | None":
        """Return the prediction from the questions that were asked; None where it cannot be measured."""
        weights = sum(each.numel() for each in without_weights(config, student).parameters())
        if not forecast.can_be_measured(config, weights, [*specs.values()]):
            return None
        known = _known_calls(asked, thinks=thinking_of(tokenizer) is not None)
        texts = Texts.of(tokenizer, asked.environment, list(asked.questions), *known)
        return Prediction(specs, evaluation, episodes, forecast.Student(config, weights, tokenizer, texts))

    def say(self) -> None:
        """Measure and say it."""
        how = "beside other work, so that the next run measures again" if forecast.is_busy() else "once for this model"
        announce.say(f"Measuring this machine's speed, {how}: a prediction follows.")
        self._say(self.student, "this machine")

    def say_again(self, kept: Path) -> None:
        """Say it of the rows that were kept, if these are far longer than what was assumed."""
        rows = read_rows(kept / "kept.jsonl")[:MEASURED]
        texts = Texts.of_rows(self.student.tokenizer, rows, self.student.texts.thought)
        if texts.exceeds(self.student.texts):
            self._say(self.student._replace(texts=texts), "rows as long as those that were kept")

    def _say(self, student: forecast.Student, whence: str) -> None:
        try:
            trainings = {
                spec.label: partial(training.forecast, spec, self.episodes)
                for name, spec in self.specs.items()
                if (training := training_of(name)).forecast
            }
            found = forecast.of_stages(student, trainings, self.evaluation)
        except Exception as error:  # a shape that cannot have so few layers; the run itself has all of them
            if stop := broken_package(error):
                raise stop from error
            announce.say(f"There is no prediction ({type(error).__name__}: {one_line(str(error))[:200]}).")
        else:
            announce.say(forecast.summary(found, whence))
            self._warn_of_memory(found)

    def _warn_of_memory(self, found: dict[str, forecast.Forecast]) -> None:
        """Warn of a training that is predicted to need more than is free, and would be killed without a word."""
        free = forecast.free_memory()
        for name, spec in self.specs.items():
            needed = found[spec.label].bytes if spec.label in found else 0.0
            if free is not None and needed > free:
                batch, together = spec.batch_size, spec.batch_size * spec.gradient_accumulation
                half = next((size for size in range(batch - 1, 0, -1) if batch % size == 0), None)
                less = f"{name}.batch_size={half} and {name}.gradient_accumulation={half and together // half}"
                announce.warn(
                    f"{spec.label} may be killed: it is predicted to need {needed / 1e9:.1f} GB, and this machine has "
                    f"{free / 1e9:.1f} GB free. "
                    + (f"The same steps in less: {less}." if half else "Take a smaller student, or shorter texts.")
                )


def _known_calls(seen: AuditedTask, thinks: bool) -> tuple[list[Call], list[str]]:
    """The first calls of the scripted policy and its workings; empty where there is none, it does not know the
    questions, or a text is right."""
    prompts = [(prompt(seen.environment, text), seed) for seed, text in zip(seen.seeds, seen.questions, strict=True)]
    try:
        turns = [next_work(seen.spec.name, seen.spec.settings, messages, 0.0, seed) for messages, seed in prompts]
    except ValueError:
        return [], []
    calls = [call for _, call in turns if not isinstance(call, str)]
    if len(calls) < len(turns):
        return [], []
    workings = [working for working, _ in turns]
    return calls, workings if thinks and all(workings) else []
