"""What the card of a dataset says: what a row is, how it was made, how it is loaded.

In: the ancestry of an artifact that is being made, and its files. Out: metadata for the Hub, and sections in Markdown.
A judgement (lengths, verdict, decision) is one JSON file in a repository of datasets: it has no rows.
"""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.artifacts.types import (
    Artifact,
    Decision,
    Evaluation,
    KeptRollouts,
    LengthStats,
    Questions,
    Rollouts,
    RolloutShard,
    Verdict,
)
from apprentice.tasks.cards.ancestry import Ancestry
from apprentice.tasks.cards.dataset_history import made_how, played_by
from apprentice.tasks.cards.sections import acted_in, block, licence_section, sources_section, tags
from apprentice.tasks.cards.snippets import dataset_snippet, where_it_runs
from apprentice.tasks.reporting.markdown import code, markdown_table

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData

WHAT: dict[type[Artifact], str] = {
    Rollouts: "A teacher's episodes in {environment}. A row is one episode, whole: the messages and tools as they were "
    "sent, the environment's reward, tokens, cost, and where it failed. Every episode is here, wrong and failed ones "
    "too.",
    RolloutShard: "Some of a teacher's episodes in {environment}: those of one range of seeds, a row each. The whole "
    "dataset is {rollouts}.",
    KeptRollouts: "A teacher's episodes in {environment} from which a student learns: those with reward 1.0, valid "
    "calls, no reasoning outside of them, and a question that the evaluation does not ask. A row is one episode, "
    "whole; TRL's `SFTTrainer` takes it as it stands. Every episode, wrong and failed ones too, is in {rollouts}.",
    Questions: "Questions of {environment} as text. A row is one seed, what it is for, and the question that it names.",
    Evaluation: "The examination of one model in {environment}. A row is one episode: the question, what the model "
    "said and called, the reward, and whether its calls were valid.",
    LengthStats: "How long the training texts are, in the student's tokens, and the `max_length` that follows.",
    Verdict: "Models compared on the same questions of {environment}, before and after training: rates with intervals, "
    "paired differences, slices, failures, contamination, and what GRPO's curves say.",
    Decision: "Whether a model that was trained in {environment} takes the champion's place, by rules that were "
    "written down before, and what was found for each.",
}
QUESTION_COLUMNS = {
    "purpose": "What the seed is for: collect (the teacher plays it), grpo (the student trains on it), evaluate.",
    "seed": "Names the question, together with the environment and its settings.",
    "question": "The question's text, as the environment asked it.",
    "used": "Whether it is used: an examined question is asked once, and is kept out of training.",
}
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
"""As the Hub names them, by powers of ten from a thousand on."""


def metadata(ancestry: Ancestry, out: Path) -> "DatasetCardData":
    from huggingface_hub import DatasetCardData

    data = sorted(out.glob("*.jsonl"))
    of_rows: dict[str, Any] = {"viewer": False}
    if data:
        rows = sum(map(_lines, data))
        of_rows = {
            "task_categories": ["text-generation"],
            "size_categories": [SIZES[min(max(len(str(rows)) - 3, 0), len(SIZES) - 1)]],
            "configs": [{"config_name": file.stem, "data_files": file.name} for file in data],
        }
    return DatasetCardData(license=ancestry.store.license, language=["en"], tags=tags(ancestry), **of_rows)


def counted(counts: dict[str, Any]) -> dict[str, Any]:
    """The counts that a reader wants."""
    return counts


def summary(ancestry: Ancestry) -> str:
    """What it is, in a paragraph."""
    said = next((WHAT[kind] for kind in getattr(ancestry.kind, "__mro__", ()) if kind in WHAT), "")
    return said.format(environment=acted_in(ancestry), rollouts=code(ancestry.store.repository(Rollouts)))


def sections(ancestry: Ancestry, out: Path) -> list[str]:
    lines = []
    if snippet := dataset_snippet(ancestry, out):
        lines += ["## Load it", "", where_it_runs(ancestry), "", block("python", snippet)]
    lines += _columns(ancestry)
    if how := made_how(ancestry):
        lines += ["## How it was made", "", *(f"- {each}" for each in how), ""]
    if data := sorted(out.glob("*.jsonl")):
        told = ", ".join(f"{code(each.name)}: {_lines(each):,} rows, {each.stat().st_size:,} bytes" for each in data)
        lines += ["## Size", "", f"{told}.", ""]
    return lines


def origin(ancestry: Ancestry) -> list[str]:
    played = played_by(ancestry)
    bought = played is not None and played["teacher"].get("scripted_error_rate") is None
    others = "The terms of the teacher's maker may bind what is done with its texts." if bought else ""
    return [*licence_section(ancestry.store.license, others), *sources_section(list(ancestry.inputs.values()))]


def failures(out: Path, counts: dict[str, Any]) -> dict[str, int]:
    """How many of the rollouts failed at which boundary."""
    rollouts = out / "rollouts.jsonl"
    if not counts.get("failed") or not rollouts.exists():
        return {}
    with rollouts.open() as lines:
        # most have not failed, and are not read for it: within a text of theirs the quotes would be escaped
        found = Counter(json.loads(line)["failed_at"] for line in lines if '"failed_at":""' not in line)
    return {f"failed at the {where}": number for where, number in sorted(found.items()) if where}


def _lines(file: Path) -> int:
    with file.open("rb") as content:
        return sum(part.count(b"\n") for part in iter(lambda: content.read(2**20), b""))


def _columns(ancestry: Ancestry) -> list[str]:
    """The data dictionary, from the docstrings of the row's fields."""
    row = ancestry.kind.row if ancestry.kind else None
    told = {name: field.description or "" for name, field in row.model_fields.items()} if row else {}
    if ancestry.is_a(Questions):
        told = QUESTION_COLUMNS
    if not told:
        return []
    rows = [
        {"column": code(name), "what it is": " ".join((said or QUESTION_COLUMNS.get(name, "")).split())}
        for name, said in told.items()
    ]
    return ["## Columns", "", markdown_table(rows)]
