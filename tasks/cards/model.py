"""What the card of a model tells: what it began as, its trainings, its examination.

In: the node of a model that is being made, and its files. Out: metadata for the Hub, and the facts that
templates/model.md.j2 names.
"""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from apprentice.envs.base import tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.diagnose import as_lines, read_signals
from apprentice.tasks.analysis.ending import ending, read_decision, read_verdict
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.artifacts.foreign import Source, code_of, is_repository
from apprentice.tasks.artifacts.lineage import Node
from apprentice.tasks.artifacts.types import (
    BaseStudent,
    GrpoCheckpoint,
    KeptRollouts,
    Questions,
    Release,
    SftCheckpoint,
)
from apprentice.tasks.cards.facts import Facts, called, shown
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.models.served import commands
from apprentice.tasks.settings.training import GrpoSpec, SftSpec

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

METRICS = {
    "accuracy": "Accuracy (episodes with reward 1.0)",
    "format_compliance": "Format compliance (episodes whose every call was valid)",
    "mean_score": "Mean reward",
}
NO_QUESTION = "Put a question here."
NEW_TOKENS = 64
"""Of a turn, where no recipe says how long it may be."""
TRAININGS = {"SFT, by TRL's `SFTTrainer`": SftCheckpoint, "GRPO, by TRL's `GRPOTrainer`": GrpoCheckpoint}


class ModelFacts(Facts):
    def __init__(self, made: Node, out: Path):
        super().__init__(made, out)
        self.sources = made.ancestors()
        self.decision = read_decision(out) if "decision.json" in self.files else None
        nearest = {title: made.nearest(kind) for title, kind in TRAININGS.items()}
        self.trainings = {title: each for title, each in nearest.items() if each and "spec" in each.settings}
        self.warnings = as_lines(read_signals(out))
        self.learned = _learned(out)
        self.runs_code_of = str(code_of(out) or "")
        self.new_tokens = self.record.provenance.recipe.get("evaluate", {}).get("max_new_tokens", NEW_TOKENS)
        in_round = made.is_a(Release) and self.record.provenance.recipe.get("round")
        self.rounds = [each.row() for each in past_rounds(made.store)] if in_round else []
        self._read_student()
        self._read_examination()
        own = Source(made.named.repository, made.named.key) if self.on_hub else None
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
        self.hub_source = Source(model, spec["revision"]) if is_on_hub else None

    def _read_examination(self) -> None:
        """The verdict on a release, the questions that it was asked, and how its answers were drawn.

        These are not simply the nearest questions: GRPO may have trained on those of another difficulty.
        """
        judged = self.made.inputs.get("judged")  # not the one of a champion that the training began from
        folder = judged.fetch() if judged else None
        self.verdict = read_verdict(folder) if folder else None
        evaluated = judged.inputs if judged else {}
        examined = evaluated.get("evaluations.grpo") or evaluated.get("evaluations.sft")
        given = self.verdict and self.decision
        self.ending = ending(self.verdict, self.decision, {}) if given else None  # type: ignore[arg-type]
        self.asked = examined.nearest(Questions) if examined else None
        self.decoding = examined.settings.get("spec") if examined else None

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
        return ModelCardData(
            license=self.made.store.license,
            language=["en"],
            library_name="transformers",
            pipeline_tag="text-generation",
            tags=self.tags,
            **of_it,
        )

    def _results(self) -> list["EvalResult"]:
        """The examination of the released model; none where training had seen more of it than was allowed."""
        from huggingface_hub import EvalResult

        verdict, asked, environment = self.verdict, self.asked, self.environment
        if verdict is None or asked is None or environment is None or not verdict["contamination"]["clean"]:
            return []
        return [
            EvalResult(
                task_type="text-generation",
                task_name=f"Acting in {called(environment)}",
                dataset_type=asked.named.repository,
                dataset_name=called(environment),
                dataset_config="questions",
                dataset_revision=asked.named.key,
                dataset_args={"purpose": "evaluate", "environment": shown(environment)},
                metric_type=metric,
                metric_name=name,
                metric_value=round([*verdict["models"].values()][-1][metric], 4),
            )
            for metric, name in METRICS.items()
        ]


def _learned(out: Path) -> dict[str, int]:
    if not (out / "learned.jsonl").exists():
        return {}
    with (out / "learned.jsonl").open() as rows:
        return Counter(json.loads(row)["stage"] for row in rows)


def meaning_of(trained: Node, setting: str) -> str:
    """What a training's setting means, by its docstring."""
    spec = SftSpec if trained.is_a(SftCheckpoint) else GrpoSpec
    field = spec.model_fields.get(setting)
    return " ".join((field.description or "").split()) if field else ""


def rung_of(trained: Node) -> dict[str, Any] | None:
    """The settings of GRPO's task, where they are others than those under which the student was made."""
    base, own = trained.nearest(BaseStudent), trained.settings.get("environment") or {}
    taught = (base.settings.get("environment") if base else None) or own
    return own["settings"] if own.get("settings") != taught.get("settings") else None


def example_prompt(made: Node) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages that open an episode, with a question, and the tools, as a model was trained to read them."""
    seed, question = _question(made)
    try:
        part = EnvironmentSpec.model_validate(made.environment()).make()._part(seed)
    except ValidationError:  # this code has the environment no more, or in another version
        return [{"role": "user", "content": question}], []
    return prompt(part, question), tool_schemas(part)


def _question(made: Node) -> tuple[int, str]:
    """Seed and text of a question of the evaluation, or of GRPO where there is none among the nearest."""
    asked = made.nearest(Questions)
    if (folder := asked.fetch() if asked else None) is None:
        return 0, NO_QUESTION
    with (folder / "questions.jsonl").open() as file:
        used = [row for row in map(json.loads, file) if row["used"]]
    by_purpose = {row["purpose"]: (row["seed"], row["question"]) for row in reversed(used)}  # the first of each
    return by_purpose.get("evaluate") or by_purpose.get("grpo", (0, NO_QUESTION))
