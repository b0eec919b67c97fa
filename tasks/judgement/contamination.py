"""Checks whether a model was trained on the questions it is evaluated on, by seed and by text.

In: evaluated episodes, a checkpoint, the collected rollouts. Out: what they share, as verdict.json has it;
before that, the questions that training may not have.
"""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.types import models_of_a_run
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.question_lists import LEARNED, read_learned, used_questions
from apprentice.tasks.settings.spec import Purpose


def seen_by(checkpoint: Path, records: list[EvaluatedEpisode]) -> set[str]:
    """The evaluated questions that a checkpoint was trained on, normalized by `same_text`."""
    return {same_text(row["question"]) for row in read_learned(checkpoint)} & {same_text(r.question) for r in records}


def count_seen(checkpoint: Path, records: list[EvaluatedEpisode]) -> int | None:
    """The number of evaluated questions that a checkpoint was trained on; None for an external model."""
    if not (checkpoint / LEARNED).exists() and (checkpoint / "source.json").exists():
        return None
    return len(seen_by(checkpoint, records))


def _counted(learned: list[dict[str, Any]]) -> dict[str, int]:
    """Questions that each training learned from; none of a model that has no training of that kind, but for the first
    two kinds, which files of every version have."""
    counted, trained = Counter(row["stage"] for row in learned), models_of_a_run()[1:]
    return {name: counted[name] for name in trained if counted[name] or name in trained[:2]}


def contamination(
    records: list[EvaluatedEpisode],
    checkpoint: Path,
    rollouts: Path | None,
    limit: float,
    repeated: int = 0,
) -> dict[str, Any]:
    """The overlap between an evaluation and the training of one checkpoint.

    Args:
        rollouts: The folder of the collected rollouts, including those that the filter dropped; None without any.
        limit: Maximum share of the questions that training may have used.
        repeated: How many questions there are, where training and evaluation are tries of the same few; then there is
            no limit.
    """
    evaluation_texts = {same_text(record.question) for record in records}
    seeds = {record.seed for record in records}
    learned = read_learned(checkpoint)
    shared = {same_text(row["question"]) for row in learned} & evaluation_texts
    shared_seeds = seeds & {row["seed"] for row in learned}
    texts: set[str] = set()
    with (rollouts / "rollouts.jsonl").open() if rollouts else nullcontext(()) as lines:
        for row in map(json.loads, lines):
            shared_seeds |= seeds & {row["seed"]}
            texts |= evaluation_texts & {same_text(message["content"]) for message in row["messages"][1:2]}
    return {
        "questions": len(evaluation_texts),
        "learned_from": _counted(learned),
        "shared_with_training": len(shared),
        "shared_with_rollouts": len(texts),
        "shared_seeds": len(shared_seeds),
        "share": len(shared) / len(evaluation_texts),
        "limit": limit,
        "clean": bool(repeated) or (len(shared) <= limit * len(evaluation_texts) and not shared_seeds),
        "repeated": repeated,
    }


def held_out_texts(folder: Path) -> set[str]:
    """The normalized questions of the evaluation that training may not have: none where there are so few questions that
    both ask the same ones."""
    evaluated, trained = (
        {same_text(row["question"]) for row in used_questions(folder, purpose)}
        for purpose in (Purpose.EVALUATE, Purpose.TRAIN)
    )
    return evaluated - trained
