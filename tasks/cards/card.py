"""The README.md of every artifact, so that a stranger can use what he finds.

In: the staged files of an artifact, what made it, the store that knows its ancestors. Out: README.md with metadata for
the Hub: a template of templates/, filled with the facts of a dataset (rows, columns, how it was made), a judgement (one
JSON file: lengths, verdict, decision) or a model (start, trainings, evaluation). Paths and addresses of the machines
that made it are left out. No revision depends on a card.
"""

import json
import re
from collections import Counter
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.advice.ending import as_markdown, ending, read_decision, read_verdict, tries_of, unclean
from apprentice.tasks.analysis.comparison import comparison_rows, label, table
from apprentice.tasks.analysis.curve_signals import as_lines, read_signals
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.artifacts import types
from apprentice.tasks.artifacts.foreign import ModelSource, code_of, is_repository
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.lineage import Node
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import CARD, RECORD, ArtifactRecord, Parent, Provenance
from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    Checkpoint,
    Evaluation,
    Exported,
    KeptRollouts,
    Questions,
    Release,
    Rollouts,
    models_by_kind,
)
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import EvaluatedEpisode, Record, read_rows
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.judgement.contents import DECISION
from apprentice.tasks.judgement.run_models import evaluations_of
from apprentice.tasks.models.tokenizer import commands
from apprentice.tasks.reporting.safe_text import cell, code, fenced, markdown_table
from apprentice.tasks.serving.exported import read_export
from apprentice.tasks.settings.endpoint import who_played_for_strangers
from apprentice.tasks.settings.spec import CollectSpec, Purpose
from apprentice.tasks.settings.training import section_named

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData, EvalResult, ModelCardData

HIDDEN = "(not shown)"
OF_A_MACHINE = re.compile(r"\w://|^(/|~/|\.{1,2}/|[A-Za-z]:\\)\S")
LABELS = {
    "cached_tokens": "prompt tokens that the endpoint had cached",
    "completion_tokens": "tokens that the teacher wrote",
    "cost_usd": "cost in USD (0 where no prices were stated)",
    "delta": "difference in the metric, new model less baseline",
    "dropped_from_grpo": "GRPO's seeds left out, as the evaluation asks their question",
    "failed": "failed episodes",
    "format_compliance": "format compliance (every turn a valid call)",
    "accuracy": "accuracy (reward 1.0)",
    "mean_score": "mean reward",
    "n": "episodes",
    "prompt_tokens": "tokens that the teacher read",
    "promoted": "let through by the gate",
    "reasoning_tokens": "written tokens that were reasoning",
    "weights": "digest of the weights",
}


class Facts:
    """The facts of an artifact that is being made, for its card.

    Args:
        made: The artifact, with what it was made from.
        out: Its files.
    """

    def __init__(self, made: Node, out: Path):
        assert made.record is not None
        self.made, self.out, self.record = made, out, made.record
        self.files = {file.name for file in out.iterdir()} | {RECORD}
        self.on_hub = isinstance(made.store, HubStore)
        self.sources = list(made.inputs.values())
        self.environment = made.environment()
        called_by = [self.environment["name"]] if self.environment else []
        self.tags = ["apprentice", "openenv", made.record.made_by["stage"], *called_by]
        lost = "an environment that no record of it names any more"
        self.acted_in = code(called(self.environment)) if self.environment else lost
        self.numbers = _numbers(made.counts, _failures(out, made.counts))


def _numbers(counts: dict[str, Any], failures: dict[str, int]) -> list[dict[str, str]]:
    """A row a count; kept and dropped episodes with their share."""
    rows = {}
    for name, value in (shown(counts) | failures).items():
        if isinstance(value, dict):
            rows |= {f"{name}: {cause}": _share(number, counts) for cause, number in value.items()}
        elif name in ("failed", "kept") or name in failures:
            rows[LABELS.get(name, name)] = _share(value, counts)
        elif name in ("accuracy", "format_compliance"):
            rows[LABELS[name]] = f"{value:.1%}"
        elif name != "stage":  # a model's stands in the summary, and calls every release a champion
            rows[LABELS.get(name, name.replace("_", " "))] = _plain(value)
    return [{"what": name, "value": value} for name, value in rows.items()]


def shown(value: Any) -> Any:
    """JSON as a card shows it: without paths of a machine, and without addresses of servers."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return HIDDEN if isinstance(value, str) and OF_A_MACHINE.search(value) else value


def as_json(value: Any, indent: int | None = 2) -> str:
    """A value as JSON, shortened for the card."""
    return json.dumps(shown(value), indent=indent, ensure_ascii=False)


def called(environment: dict[str, Any]) -> str:
    """What a person calls an environment, such as "reasoning_gym chain_sum"; as `EnvironmentSpec` does."""
    texts = [value for value in environment.get("settings", {}).values() if isinstance(value, str)]
    return " ".join([environment["name"], *map(str, shown(texts))])


def teacher_text(teacher: dict[str, Any]) -> str:
    """Who played a teacher's episodes, within a sentence."""
    return code(who_played_for_strangers(teacher | {"model": shown(teacher.get("model"))}))


def lines_of(file: Path) -> int:
    with file.open("rb") as content:
        return sum(part.count(b"\n") for part in iter(lambda: content.read(2**20), b""))


def _failures(out: Path, counts: dict[str, Any]) -> dict[str, int]:
    rollouts = out / "rollouts.jsonl"
    if not counts.get("failed") or not rollouts.exists():
        return {}
    with rollouts.open() as lines:
        # most have not failed, and are not read for it: within a text of theirs the quotes would be escaped
        found = Counter(json.loads(line)["failed_at"] for line in lines if '"failed_at":""' not in line)
    return {f"failed at the {where}": number for where, number in sorted(found.items()) if where}


def _share(number: float, counts: dict[str, Any]) -> str:
    of = counts.get("episodes")
    return f"{number:,} of {of:,} ({number / of:.1%})" if of and isinstance(number, int) else _plain(number)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(code(str(each)) for each in dict.fromkeys(value)) or "none"
    return value if value == HIDDEN else code(value if isinstance(value, str) else json.dumps(value))


QUESTION_COLUMNS = {
    "purpose": "What the seed is for: collect (the teacher plays it), grpo (the student trains on it), evaluate.",
    "seed": "Names the question, together with the environment and its settings.",
    "question": "The question's text, as the environment asked it.",
    "used": "Whether it is used: an evaluation question is used once, and is kept out of training.",
}
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
"""As the Hub names them, by powers of ten from a thousand on."""


MIXED = "mix_rollouts", "mix_thoughts"
ROWS = {Rollouts: Record, KeptRollouts: Record, Evaluation: EvaluatedEpisode}
"""What a line of an artifact's data is, where that is for others to read."""


class DatasetFacts(Facts):
    def __init__(self, made: Node, out: Path):
        super().__init__(made, out)
        self.data = sorted(out.glob("*.jsonl"))
        self.judgement = min((file.name for file in out.glob("*.json")), default=None)
        self.columns = QUESTION_COLUMNS if made.is_a(Questions) else _columns(made)
        self.played = played_by(made)
        self.spent = _spent(made)
        self.players = _players(out / "kept.jsonl")
        self.model, self.questions = made.nearest(Checkpoint), made.nearest(Questions)

    def metadata(self) -> "DatasetCardData":
        from huggingface_hub import DatasetCardData

        of_rows: dict[str, Any] = {"viewer": False}
        if self.data:
            rows = sum(map(lines_of, self.data))
            of_rows = {
                "task_categories": ["text-generation"],
                "size_categories": [SIZES[min(max(len(str(rows)) - 3, 0), len(SIZES) - 1)]],
                "configs": [{"config_name": file.stem, "data_files": file.name} for file in self.data],
            }
        return DatasetCardData(license=self.made.store.license, language=["en"], tags=self.tags, **of_rows)


def played_by(made: Node) -> dict[str, Any] | None:
    """The settings by which a teacher played these episodes; None without rollouts."""
    above = (each for each in [made, *made.ancestors()] if each.is_a(Rollouts))
    return next((each.settings for each in above if "teacher" in each.settings), None)


def trained_on(made: Node) -> str:
    """What SFT learned from, within a sentence."""
    return "conversations that were given" if made.is_of_a_dataset else "a teacher's episodes"


def _spent(made: Node) -> dict[str, Any] | None:
    """What the rollouts counted from which episodes were kept; None for other datasets, or where they are gone."""
    rollouts = made.nearest(Rollouts) if made.is_a(KeptRollouts) else None
    return rollouts.counts if rollouts and "cost_usd" in rollouts.counts else None


def _players(kept: Path) -> dict[str, int]:
    """How many rows of a mix who played; empty where only a teacher did."""
    rows = read_rows(kept) if kept.exists() else []
    return Counter(row["player"] for row in rows if "player" in row)


def _columns(made: Node) -> dict[str, str]:
    """The data dictionary, from the docstrings of the row's fields."""
    row = next((row for kind, row in ROWS.items() if made.is_a(kind)), None)
    descriptions = {name: field.description for name, field in row.model_fields.items()} if row else {}
    if made.record and made.record.made_by["stage"] not in MIXED:  # a single player is not named in the rows
        descriptions.pop("player", None)
    if not made.record or made.record.provenance.recipe.get(CollectSpec.section, {}).get("unverified") != "keep":
        descriptions.pop("verified", None)
    return {name: " ".join((text or QUESTION_COLUMNS.get(name, "")).split()) for name, text in descriptions.items()}


METRICS = {
    "accuracy": "Accuracy (episodes with reward 1.0)",
    "format_compliance": "Format compliance (episodes whose every call was valid)",
    "mean_score": "Mean reward",
}
NO_QUESTION = "Put a question here."
NEW_TOKENS = 64
"""Of a turn, where no recipe says how long it may be."""


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
        self.learned = _learned(out)
        self.runs_code_of = str(code_of(out) or "")
        self.new_tokens = self.record.provenance.recipe.get("evaluate", {}).get("max_new_tokens", NEW_TOKENS)
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
        """The evaluation of the released model; none where training had seen more of it than was allowed."""
        from huggingface_hub import EvalResult

        verdict, questions, environment = self.verdict, self.questions, self.environment
        if verdict is None or questions is None or environment is None or not verdict.contamination.clean:
            return []
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
                metric_value=round(getattr(verdict.models.last, metric), 4),
            )
            for metric, name in METRICS.items()
        ]


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


def _learned(out: Path) -> dict[str, int]:
    if not (out / "learned.jsonl").exists():
        return {}
    with (out / "learned.jsonl").open() as rows:
        return Counter(json.loads(row)["stage"] for row in rows)


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
    with (folder / "questions.jsonl").open() as file:
        used = [row for row in map(json.loads, file) if row["used"]]
    by_purpose = {row["purpose"]: (row["seed"], row["question"]) for row in reversed(used)}  # the first of each
    return by_purpose.get(Purpose.EVALUATE) or next(iter(by_purpose.values()), (0, NO_QUESTION))


TEMPLATES = Path(__file__).parent / "templates"
FUNCTIONS = (as_json, as_markdown, cell, code, comparison_rows, fenced, label, lines_of, tries_of, unclean)
FUNCTIONS += (markdown_table, meaning_of, pformat, played_by, level_of, shown, table, teacher_text, trained_on)
PAGES = Environment(loader=FileSystemLoader(TEMPLATES))
"""Compiles each template once; huggingface_hub's own `from_template` does so for every card."""
PAGES.globals |= {each.__name__: each for each in FUNCTIONS}
PAGES.globals |= {"template_arguments": TEMPLATE_ARGUMENTS, "kinds": types}


def write_card(
    out: Path,
    kind: type[Artifact],
    key: str,
    store: LocalStore,
    counts: dict[str, Any],
    made_by: dict[str, Any],
    provenance: Provenance,
) -> None:
    """Writes `out`/README.md with the Hub's metadata block."""
    from huggingface_hub import DatasetCard, ModelCard

    named = Parent(kind=kind.__name__, repository=store.repository(kind), revision="", key=key)
    fields = {"key": key, "counts": counts, "made_by": made_by, "files": {}, "provenance": provenance}
    made = Node(store, named, ArtifactRecord(kind=kind.__name__, **fields), {})
    page = "gguf" if issubclass(kind, Exported) else kind.repo_type
    facts = {"gguf": ExportFacts, "model": ModelFacts, "dataset": DatasetFacts}[page](made, out)
    data = facts.metadata()
    template = PAGES.get_template(f"{page}.md.j2")
    text = template.render(card_data=data.to_yaml(), card=facts, **data.to_dict())
    (ModelCard if kind.repo_type == "model" else DatasetCard)(text).save(out / CARD)
