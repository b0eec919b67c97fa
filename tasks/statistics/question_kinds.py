"""The kind of each question of a training, for GRPO's curriculum.

In: questions and the tags that the environment gives them; evaluated episodes, GRPO's log. Out: kinds, and by kind the
right answers or the course of a training.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.errors import Stop

OF_PARTS = ("environment", "dataset")
"""The slice names that tell the parts of a mixture, or of a composite dataset."""
QUESTIONS, RATE = "curriculum/asked/", "curriculum/rate/"
"""GRPO's metrics by kind: questions asked in a step, and the success rate as it is known after it."""
NO_SLICE = "others"
"""The kind of a question that has none of the slices."""


def kinds_of(environment: EnvironmentSpec, rows: Iterable[dict[str, Any]], by: Sequence[str]) -> dict[int, str]:
    """The slice of each question, by its seed. Raises Stop if they are all of one slice, or a tag is unknown."""
    instance = environment.make()
    question_slices = {row["seed"]: _slices_of_question(instance, row["seed"], row["question"], by) for row in rows}
    known = sorted({name for each in question_slices.values() for name in each})
    for name in by:
        if name not in known:
            raise Stop(
                f"grpo.curriculum.by: no question of {environment} has the tag {name!r}.",
                f"Take one of these: {', '.join(known)}." if known else "This environment has no tags.",
            )
    kinds = {seed: kind_of(each, by) for seed, each in question_slices.items()}
    if len(set(kinds.values())) < 2:
        raise Stop(
            f"grpo.curriculum has nothing to choose: all questions are of one slice, {next(iter(kinds.values()))}.",
            f"Set grpo.curriculum.by to a tag that differs between them ({', '.join(known)}), set levels "
            "(grpo.auto_difficulty), or leave grpo.curriculum out.",
        )
    return kinds


def _slices_of_question(instance: Player, seed: int, question: str, by: Sequence[str]) -> dict[str, int | str]:
    """A mixture's label alone where no other slice is asked for, since others may take seconds to make."""
    label = instance.part(seed).label
    return {"environment": label} if label and not by else instance.slices(seed, question)


def kind_of(question_slices: dict[str, int | str], by: Sequence[str]) -> str:
    """Such as "word_len 3", or the label of a mixture's part."""
    names = [name for name in by or OF_PARTS if name in question_slices]
    named = [str(question_slices[name]) if name in OF_PARTS else f"{name} {question_slices[name]}" for name in names]
    return ", ".join(named) or NO_SLICE


def right_and_wrong(records: Iterable[EvaluatedEpisode], by: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The number of right and of wrong answers to each kind; episodes on which the environment failed count as none."""
    counts: dict[str, tuple[int, int]] = {}
    for record in records:
        if not record.broken:
            kind = kind_of(json.loads(record.traits), by)
            right, wrong = counts.get(kind, (0, 0))
            counts[kind] = right + record.is_right, wrong + (not record.is_right)
    return counts


def kinds_over_time(log: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By kind `asked`, its share of a step's questions, and `rate`, its success rate, each as (step, value). Empty
    without a curriculum."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for entry in log:
        counts = {name.removeprefix(QUESTIONS): value for name, value in entry.items() if name.startswith(QUESTIONS)}
        for kind, count in counts.items():
            of_kind = found.setdefault(kind, {"asked": [], "rate": []})
            of_kind["asked"].append((entry["step"], count / sum(counts.values())))
            of_kind["rate"].append((entry["step"], entry[RATE + kind]))
    return dict(sorted(found.items()))
