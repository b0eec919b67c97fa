"""Whether a model learned from the questions it is examined on: by seed and by text, from the artifacts.

In: an evaluation's episodes, what a checkpoint learned from (learned.jsonl, written while it was trained and carried
on from checkpoint to checkpoint), the rollouts that were bought. Out: counts, and whether it is clean.
Why by text: small problem spaces repeat a question under other seeds. Texts that differ in case or white space only are
one question.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.learned import LEARNED, read_learned
from apprentice.tasks.episodes.questions import same_text
from apprentice.tasks.episodes.record import EvaluatedEpisode


def seen_by(checkpoint: Path, records: list[EvaluatedEpisode]) -> set[str]:
    """The examined questions, as `same_text` spells them, that a checkpoint learned from."""
    return {same_text(row["question"]) for row in read_learned(checkpoint)} & {same_text(r.question) for r in records}


def count_seen(checkpoint: Path, records: list[EvaluatedEpisode]) -> int | None:
    """How many of the examined questions a checkpoint learned from; None for a model that does not say."""
    if not (checkpoint / LEARNED).exists() and (checkpoint / "source.json").exists():
        return None
    return len(seen_by(checkpoint, records))


def contamination(records: list[EvaluatedEpisode], checkpoint: Path, rollouts: Path, limit: float) -> dict[str, Any]:
    """What the examination shares with the training of one checkpoint.

    Args:
        rollouts: The folder of what was bought; what the filter dropped of it was not learned from.
        limit: Share of the questions that may have been learned from.
    """
    examined = {same_text(record.question) for record in records}
    seeds = {record.seed for record in records}
    learned = read_learned(checkpoint)
    shared = {same_text(row["question"]) for row in learned} & examined
    shared_seeds = seeds & {row["seed"] for row in learned}
    texts: set[str] = set()
    with (rollouts / "rollouts.jsonl").open() as lines:
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
