"""The facts of a model's card: its start, its trainings, its evaluation, how it is used; and of exported files.

In: the staged files of an artifact, and what made it. Out: `ModelFacts`, `ExportFacts`.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.advice.ending import ending, read_decision, read_verdict
from apprentice.tasks.analysis.curve_signals import as_lines, read_signals
from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.foreign.models import ModelSource, code_of, is_repository
from apprentice.tasks.artifacts.types import (
    BaseStudent,
    KeptRollouts,
    Questions,
    Release,
    models_by_kind,
)
from apprentice.tasks.cards.facts import Facts, called, shown, tokens_of_turn
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.thinking import thinking_at, turn_tokens
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.judgement.contents import DECISION
from apprentice.tasks.judgement.run_models import evaluations_of
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.models.tokenizer import commands
from apprentice.tasks.serving.exported import read_export
from apprentice.tasks.settings.spec import Purpose
from apprentice.tasks.settings.training import section_named

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData


METRICS = {
    "accuracy": "Accuracy (episodes with reward 1.0)",
    "format_compliance": "Format compliance (episodes whose every call was valid)",
    "mean_score": "Mean reward",
}
NO_QUESTION = "Put a question here."
NEW_TOKENS = 64
"""Of an answer, where no recipe says how long it may be."""


class ModelFacts(Facts):
    def __init__(self, made: Node, out: Path):
        super().__init__(made, out)
        self.sources = made.ancestors()
        self.decision = read_decision(out) if DECISION in self.files else None
        nearest = {
            f"{spec.label}, by TRL's `{spec.trainer()}`": made.nearest(kind)
            for kind, name in models_by_kind().items()
            if (spec := section_named(name))
        }
        self.trainings = {title: each for title, each in nearest.items() if each and "spec" in each.settings}
        self.warnings = as_lines(read_signals(out))
        self.learned = Counter(row["stage"] for row in read_learned(out))
        self.runs_code_of = str(code_of(out) or "")
        self.thinking = thinking_at(out)
        answer = self.record.provenance.recipe.get("evaluate", {}).get("max_new_tokens", NEW_TOKENS)
        self.new_tokens = turn_tokens(answer, self.thinking)
        in_round = made.is_a(Release) and self.record.provenance.recipe.get("round")
        self.rounds = [each.row() for each in past_rounds(made.store)] if in_round else []
        self._read_student()
        self._read_evaluation()
        own = ModelSource(made.named.repository, made.named.key) if self.on_hub else None
        elsewhere = self.hub_source if made.is_a(BaseStudent) else None
        self.has_weights = elsewhere is not None or any(out.glob("*.safetensors"))
        self.tokenizer_source, self.weights_source = own, elsewhere or own
        self.messages, self.tools = example_prompt(made)
        self.served_by = self._served_by(out) if self.has_weights else []

    def _served_by(self, out: Path) -> list[str]:
        """The commands that serve it; none where only a Hub's repository has weights and this one the tokenizer."""
        template, own = out / "chat_template.jinja", self.tokenizer_source
        if not template.exists() or self.weights_source != own:
            return []
        return commands(template.read_text(), (own and own.model) or ".", own.revision if own else None)

    def _read_student(self) -> None:
        """The model before any training, whether somebody else made it, and where on the Hub it is."""
        base = self.made.nearest(BaseStudent)
        self.student = base if base and base.settings.get("spec") else None
        spec = self.student.settings["spec"] if self.student else {}
        model = spec.get("model")
        self.given = bool(model or spec.get("content"))
        is_on_hub = model and not Path(model).exists() and is_repository(model)
        self.hub_source = ModelSource(model, spec["revision"]) if is_on_hub else None

    def _read_evaluation(self) -> None:
        """The verdict on a release, the questions that it was asked, and how its answers were drawn.

        These are not simply the nearest questions: GRPO may have trained on those of another difficulty.
        """
        judged = self.made.inputs.get("judged")  # not the one of a champion that the training began from
        folder = judged.fetch() if judged else None
        self.verdict = read_verdict(folder) if folder else None
        evaluations = evaluations_of(judged.inputs if judged else {})
        evaluation = evaluations.last if evaluations else None
        self.ending = ending(self.verdict, self.decision, {}) if self.verdict and self.decision else None
        self.questions = evaluation.nearest(Questions) if evaluation else None
        self.decoding = evaluation.settings.get("spec") if evaluation else None
        self.turn_tokens = tokens_of_turn(self.decoding, None, self.out) if self.decoding else None

    def metadata(self) -> "ModelCardData":
        from huggingface_hub import ModelCardData

        base, kept = self.hub_source, self.made.nearest(KeptRollouts)
        of_it: dict[str, Any] = {"datasets": [kept.named.repository]} if kept else {}
        if not self.made.is_a(BaseStudent):
            ours = self.made.store.repository(BaseStudent)
            of_it |= {"base_model": base.model if base else ours, "base_model_relation": "finetune"}
        elif base:
            of_it["base_model"] = base.model
        if results := self._results():
            name = self.made.named.repository.rpartition("/")[2]
            of_it |= {"model_name": name, "eval_results": results, "metrics": ["accuracy"]}
        if self.has_weights and not self.made.is_a(BaseStudent):
            of_it["widget"] = [{"example_title": "A question", "messages": self.messages}]
        return ModelCardData(
            license=self.made.store.license,
            language=["en"],
            library_name="transformers",
            pipeline_tag="text-generation",
            tags=self.tags,
            **of_it,
        )

    def _results(self) -> list["EvalResult"]:
        """The evaluation of the released model; none where training had seen more of it than was allowed."""
        from huggingface_hub import EvalResult

        verdict, questions, environment = self.verdict, self.questions, self.environment
        if verdict is None or questions is None or environment is None or not verdict.contamination.clean:
            return []
        last = verdict.models.last
        return [
            EvalResult(
                task_type="text-generation",
                task_name=f"Acting in {called(environment)}",
                dataset_type=questions.named.repository,
                dataset_name=called(environment),
                dataset_config="questions",
                dataset_revision=questions.named.key,
                dataset_args={"purpose": "evaluate", "environment": shown(environment)},
                metric_type=metric,
                metric_name=name,
                metric_value=round(getattr(last, metric), 4),
                metric_args={"n": last.n} | _interval(last.ci.get(metric)),
            )
            for metric, name in METRICS.items()
        ]


def _interval(found: tuple[float, float] | None) -> dict[str, list[float]]:
    return {"confidence_interval_95": [round(each, 4) for each in found]} if found else {}


class ExportFacts(Facts):
    """Of files for llama.cpp."""

    def __init__(self, made: Node, out: Path):
        super().__init__(made, out)
        self.exported = read_export(out)
        self.numbers = self.exported.rows()
        self.model = made.inputs["checkpoint"]

    def metadata(self) -> "ModelCardData":
        from huggingface_hub import ModelCardData

        return ModelCardData(
            license=self.made.store.license,
            language=["en"],
            library_name="gguf",
            pipeline_tag="text-generation",
            base_model=self.model.named.repository,
            base_model_relation="quantized",
            tags=[*self.tags, "gguf", "llama.cpp"],
        )


def meaning_of(trained: Node, setting: str) -> str:
    """What a training's setting means, by its docstring."""
    spec = next((section_named(name) for kind, name in models_by_kind().items() if trained.is_a(kind)), None)
    field = spec.model_fields.get(setting) if spec else None
    return " ".join((field.description or "").split()) if field else ""


def level_of(trained: Node) -> dict[str, Any] | None:
    """The settings of GRPO's task, where they are others than those under which the student was made."""
    base, own = trained.nearest(BaseStudent), trained.settings.get("environment") or {}
    student_environment = (base.settings.get("environment") if base else None) or own
    return own["settings"] if own.get("settings") != student_environment.get("settings") else None


def example_prompt(made: Node) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages that open an episode, with a question, and the tools, as a model was trained to read them."""
    seed, question = _question(made)
    try:
        part = EnvironmentSpec.model_validate(made.environment()).make().part(seed)
    except ValidationError:  # this code has the environment no more, or in another version
        return [{"role": "user", "content": question}], []
    return prompt(part, question), part.schemas


def _question(made: Node) -> tuple[int, str]:
    """Seed and text of a question of the evaluation, or of GRPO where there is none among the nearest."""
    questions = made.nearest(Questions)
    if (folder := questions.fetch() if questions else None) is None:
        return 0, NO_QUESTION
    used = [row for row in read_rows(folder / "questions.jsonl") if row["used"]]
    by_purpose = {row["purpose"]: (row["seed"], row["question"]) for row in reversed(used)}  # the first of each
    return by_purpose.get(Purpose.EVALUATE) or next(iter(by_purpose.values()), (0, NO_QUESTION))
