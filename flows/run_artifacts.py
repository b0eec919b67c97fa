"""What the stages of one run made, by name.

In: the pipeline and its results. Out: the artifacts, and the trained models with their logs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from apprentice.flows.pages.curves import curves_of
from apprentice.tasks.analysis.curve_signals import read_signals
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import Artifact, Evaluation, ModelName, Verdict
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.training.method import Training
from apprentice.tasks.training.trainer import read_log
from apprentice.tasks.trainings import training_of

if TYPE_CHECKING:
    from apprentice.flows.pipeline import Pipeline
    from apprentice.flows.promotion import Promotion


class TrainedModel(NamedTuple):
    """A model that a run has trained, in its folder."""

    training: Training[Any]
    folder: Path

    @property
    def log(self) -> list[dict[str, Any]]:
        return read_log(self.folder)

    @property
    def signals(self) -> dict[str, Any]:
        return read_signals(self.folder)

    def curves(self) -> list[dict[str, Any]]:
        return curves_of(self.training.curves, self.log, self.signals["signals"])


class Artifacts(NamedTuple):
    """What the stages of one run made."""

    stages: "Pipeline"
    evaluations: Models[Evaluation]
    regression_evaluations: dict[str, Evaluation]
    results: Verdict
    outcome: "Promotion"
    thoughts: dict[str, Evaluation]
    """The last model within parts of its thought's budget, and in samples for a vote."""

    def artifacts(self) -> list[Artifact]:
        questions, lessons, probed = self.stages.questions, self.stages.learned_from, self.stages.probed
        learned = [each for each in lessons or () if each]
        tasks = [each for each in probed.artifacts() if each != questions] if probed else []
        evaluated = [*self.evaluations.values(), *self.regression_evaluations.values(), *self.thoughts.values()]
        models = self.stages.models.values()
        return [questions, *learned, *models, *tasks, *evaluated, self.results, self.outcome.release]

    def by_name(self) -> dict[str, Any]:
        """What a reader of report.json finds in the store: kind, repository, revision and key of each."""
        lessons = self.stages.learned_from
        named: dict[str, Artifact | None] = {
            "rollouts": lessons and lessons.rollouts,
            "kept": lessons and lessons.kept,
        }
        return {
            "models": {name: parent(each).model_dump() for name, each in self.stages.models.items()},
            "evaluations": {name: parent(each).model_dump() for name, each in self.evaluations.items()},
            **{name: each and parent(each).model_dump() for name, each in named.items()},
        }

    def trained(self) -> dict[str, TrainedModel]:
        """The trained models with their logs, by the title of their stage."""
        fetch, found = self.stages.run.store.fetch, {}
        for name, model in self.stages.models.items():
            if name != ModelName.BASE:
                training = training_of(model.stage)
                found[label(name) if name == ModelName.CONTROL else training.spec.label] = TrainedModel(
                    training, fetch(model)
                )
        return found
