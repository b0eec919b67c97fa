"""Kinds of questions, by the traits that the environment tells of them.

In: questions or evaluated episodes, the names of the traits; the log of a training with a curriculum. Out: each
question's kind, how many of each kind an evaluation had right and wrong, what a training asked when.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from apprentice.envs.base import ToolEnvironment, traits_of
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.errors import Stop

OF_PARTS = ("environment", "dataset")
"""The traits that tell the parts of a mixture, or of a composite dataset."""
ASKED, RATE = "curriculum/asked/", "curriculum/rate/"
"""GRPO's metrics by kind: questions asked in a step, and the success rate as it is known after it."""
NO_TRAITS = "others"
"""The kind of a question that has none of the traits."""


def kinds_of(environment: EnvironmentSpec, rows: Iterable[dict[str, Any]], by: Sequence[str]) -> dict[int, str]:
    """The kind of each question, by its seed. Raises Stop where they are all of one kind, or a trait is unknown."""
    instance = environment.make()
    traits = {row["seed"]: _traits_of_question(instance, row["seed"], row["question"], by) for row in rows}
    known = sorted({name for each in traits.values() for name in each})
    for name in by:
        if name not in known:
            raise Stop(
                f"grpo.curriculum.by: no question of {environment} has the trait {name!r}.",
                f"Take one of these: {', '.join(known)}." if known else "This environment tells no traits.",
            )
    kinds = {seed: kind_of(each, by) for seed, each in traits.items()}
    if len(set(kinds.values())) < 2:
        raise Stop(
            f"grpo.curriculum has nothing to choose from: all questions are of one kind, {next(iter(kinds.values()))}.",
            f"Set grpo.curriculum.by to a trait that tells them apart ({', '.join(known)}), name rungs "
            "(grpo.auto_difficulty), or leave grpo.curriculum out.",
        )
    return kinds


def _traits_of_question(instance: ToolEnvironment, seed: int, question: str, by: Sequence[str]) -> dict[str, int | str]:
    """A mixture's label alone where no other trait is asked for, since others may take seconds to make."""
    label = instance._part(seed).label
    return {"environment": label} if label and not by else traits_of(instance, seed, question)


def kind_of(traits: dict[str, int | str], by: Sequence[str]) -> str:
    """Such as "word_len 3", or the label of a mixture's part."""
    names = [name for name in by or OF_PARTS if name in traits]
    named = [str(traits[name]) if name in OF_PARTS else f"{name} {traits[name]}" for name in names]
    return ", ".join(named) or NO_TRAITS


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
        asked = {name.removeprefix(ASKED): value for name, value in entry.items() if name.startswith(ASKED)}
        for kind, count in asked.items():
            of_kind = found.setdefault(kind, {"asked": [], "rate": []})
            of_kind["asked"].append((entry["step"], count / sum(asked.values())))
            of_kind["rate"].append((entry["step"], entry[RATE + kind]))
    return dict(sorted(found.items()))
