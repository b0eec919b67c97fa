"""What the card of a model says: what it can do and what it is not for, how it was trained, how it is loaded.

In: the ancestry of a model that is being made, and its files. Out: metadata for the Hub, and sections in Markdown.
"""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.analysis.signals import as_lines, read_signals
from apprentice.tasks.artifacts.trust import code_of
from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    Release,
    SftCheckpoint,
)
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.cards.model_history import (
    began,
    begun_as,
    examination,
    examined_on,
    given_model,
    trainings,
    verdict_on,
)
from apprentice.tasks.cards.sections import acted_in, block, called, licence_section, shown, sources_section, tags
from apprentice.tasks.cards.snippets import model_snippet, where_it_runs
from apprentice.tasks.reporting.markdown import code

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

WHAT: dict[type[Artifact], str] = {
    BaseStudent: "The student that is to learn to act in {environment}, before it learned anything there. Its "
    "weights are {begun}.",
    SftCheckpoint: "A small language model that acts in {environment} by calling its tools, after supervised "
    "fine-tuning on a teacher's episodes. GRPO goes on from here.",
    GrpoCheckpoint: "A small language model that acts in {environment} by calling its tools, after supervised "
    "fine-tuning on a teacher's episodes and GRPO in the environment itself.",
    Release: "A small language model that acts in {environment} by calling its tools: trained by supervised "
    "fine-tuning on a teacher's episodes, then by GRPO in the environment itself, examined on held-out questions, and "
    "judged by a gate.",
}
METRICS = {
    "accuracy": "Accuracy (episodes with reward 1.0)",
    "format_compliance": "Format compliance (episodes whose every call was valid)",
    "mean_score": "Mean reward",
}


def metadata(ancestry: Ancestry, out: Path) -> "ModelCardData":
    from huggingface_hub import ModelCardData

    base, kept = begun_as(ancestry), ancestry.nearest(KeptRollouts)
    of_it: dict[str, Any] = {"datasets": [kept.name.repository]} if kept else {}
    if not ancestry.is_a(BaseStudent):
        ours = ancestry.store.repository(BaseStudent)
        of_it |= {"base_model": base[0] if base else ours, "base_model_relation": "finetune"}
    elif base:
        of_it["base_model"] = base[0]
    if results := _results(ancestry):
        name = ancestry.name.repository.rpartition("/")[2]
        of_it |= {"model_name": name, "eval_results": results, "metrics": ["accuracy"]}
    return ModelCardData(
        license=ancestry.store.license,
        language=["en"],
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=tags(ancestry),
        **of_it,
    )


def counted(counts: dict[str, Any]) -> dict[str, Any]:
    """The counts that a reader wants: the stage stands in the summary, and calls every release a champion."""
    return {name: value for name, value in counts.items() if name != "stage"}


def summary(ancestry: Ancestry) -> str:
    said = next((WHAT[kind] for kind in getattr(ancestry.kind, "__mro__", ()) if kind in WHAT), "")
    return said.format(environment=acted_in(ancestry), begun=began(ancestry))


def sections(ancestry: Ancestry, out: Path) -> list[str]:
    lines = []
    if (out / "curves.png").exists():
        which = "SFT" if ancestry.is_a(SftCheckpoint) else "GRPO"
        lines += ["## Curves", "", f"![The curves of {which}](curves.png)", ""]
    if warned := as_lines(read_signals(out)):
        lines += ["## What its training warned of", "", *(f"- {line}" for line in warned), ""]
    return [*lines, *_use(ancestry, out), *_limits(ancestry, out), *trainings(ancestry)]


def origin(ancestry: Ancestry) -> list[str]:
    base = begun_as(ancestry)
    others = f"The terms of {code(base[0])}, from which it derives, bind besides." if base else ""
    source = [f"Its weights began as {began(ancestry)}.", ""]
    return [*licence_section(ancestry.store.license, others), *sources_section(ancestry.ancestors()), *source]


def _results(ancestry: Ancestry) -> list["EvalResult"]:
    """The examination of the released model; none where training had seen more of it than was allowed."""
    from huggingface_hub import EvalResult

    verdict, asked, environment = verdict_on(ancestry), examined_on(ancestry), ancestry.environment()
    if verdict is None or asked is None or environment is None or not verdict["contamination"]["clean"]:
        return []
    return [
        EvalResult(
            task_type="text-generation",
            task_name=f"Acting in {called(environment)}",
            dataset_type=asked.name.repository,
            dataset_name=called(environment),
            dataset_config="questions",
            dataset_revision=asked.name.key,
            dataset_args={"purpose": "evaluate", "environment": shown(environment)},
            metric_type=metric,
            metric_name=name,
            metric_value=round(verdict["models"]["grpo"][metric], 4),
        )
        for metric, name in METRICS.items()
    ]


def _use(ancestry: Ancestry, out: Path) -> list[str]:
    """How it is loaded and asked."""
    source = begun_as(ancestry) if ancestry.is_a(BaseStudent) else None
    lines = ["## Use it", ""]
    if source is None and not list(out.glob("*.safetensors")):
        return [*lines, "Here are its tokenizer and its configuration; its weights were not published.", ""]
    source_of_code = code_of(out)
    if source_of_code:
        lines += [f"**This runs Python code of {code(str(source_of_code))}.** Read that code first.", ""]
    return [
        *lines,
        "It reads a question after the system prompt and the tools of its training, in its own chat template, and "
        f"answers with a call of a tool. {where_it_runs(ancestry)}",
        "",
        block("python", model_snippet(ancestry, source, source_of_code is not None)),
    ]


def _limits(ancestry: Ancestry, out: Path) -> list[str]:
    lines = ["## What it is for, and what not", ""]
    if ancestry.is_a(BaseStudent):
        seen = "What its pretraining has seen is not known here." if given_model(ancestry) else ""
        return [
            *lines,
            f"It is the beginning of a training, and what trained models are compared with. {seen}".rstrip(),
            "",
        ]
    lines += [
        f"- It was trained for exactly one environment, {acted_in(ancestry)}, with the settings below, and for nothing "
        "else. Other tasks, other settings, other tools and free conversation are outside of what it can do.",
        "- It is small, and it errs: see its rates before you rely on an answer.",
        "- It carries what its teacher, its data and the model that it began as carry: nothing was filtered.",
    ]
    elsewhere = (
        f"in {code(ancestry.store.repository(Evaluation))}, and on the card of its release in "
        f"{code(ancestry.store.repository(Release))}"
    )
    lines += examination(ancestry) or [f"- Its examination is {elsewhere}."]
    if learned := _learned(out):
        lines.append(f"- It was trained on the questions in `learned.jsonl` ({learned}): examine it on others.")
    return [*lines, ""]


def _learned(out: Path) -> str:
    """How many questions each training asked, in words."""
    if not (out / "learned.jsonl").exists():
        return ""
    with (out / "learned.jsonl").open() as rows:
        asked = Counter(json.loads(row)["stage"] for row in rows)
    return ", ".join(f"{stage.upper()}: {number:,}" for stage, number in asked.items())
