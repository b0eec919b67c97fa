"""Checks whether a model was trained on the questions it is evaluated on, by seed and by text.

In: an evaluation's episodes, the checkpoint's learned.jsonl, the rollouts. Out: counts, and whether it is clean.
Why by text: small problem spaces repeat a question under other seeds. Texts that differ only in case or white space
count as the same question.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.jsonl import LEARNED, read_learned, same_text
from apprentice.tasks.episodes.record import EvaluatedEpisode


def seen_by(checkpoint: Path, records: list[EvaluatedEpisode]) -> set[str]:
    """The evaluated questions that a checkpoint was trained on, normalized by `same_text`."""
    return {same_text(row["question"]) for row in read_learned(checkpoint)} & {same_text(r.question) for r in records}


def count_seen(checkpoint: Path, records: list[EvaluatedEpisode]) -> int | None:
    """The number of evaluated questions that a checkpoint was trained on; None for an external model."""
    if not (checkpoint / LEARNED).exists() and (checkpoint / "source.json").exists():
        return None
    return len(seen_by(checkpoint, records))


def contamination(
    records: list[EvaluatedEpisode], checkpoint: Path, rollouts: Path | None, limit: float
) -> dict[str, Any]:
    """The overlap between an evaluation and the training of one checkpoint.

    Args:
        rollouts: The folder of the collected rollouts, including those that the filter dropped; None without any.
        limit: Maximum share of the questions that training may have used.
    """
    examined = {same_text(record.question) for record in records}
    seeds = {record.seed for record in records}
    learned = read_learned(checkpoint)
    shared = {same_text(row["question"]) for row in learned} & examined
    shared_seeds = seeds & {row["seed"] for row in learned}
    texts: set[str] = set()
    with (rollouts / "rollouts.jsonl").open() if rollouts else nullcontext(()) as lines:
        for row in map(json.loads, lines):
            shared_seeds |= seeds & {row["seed"]}
            texts |= examined & {same_text(message["content"]) for message in row["messages"][1:2]}
    return {
        "questions": len(examined),
        "learned_from": {stage: sum(row["stage"] == stage for row in learned) for stage in ("sft", "grpo")},
        "shared_with_training": len(shared),
        "shared_with_rollouts": len(texts),
        "shared_seeds": len(shared_seeds),
        "share": len(shared) / len(examined),
        "limit": limit,
        "clean": len(shared) <= limit * len(examined) and not shared_seeds,
    }
