"""Accuracy by slice: a name, such as the environment's tag of a question, and one of its kinds.

In: evaluated episodes of several models on the same questions. Out: one row per slice, with intervals.
"""

import json
from collections.abc import Callable
from typing import Any

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.statistics.intervals import clustered_interval
from apprentice.tasks.statistics.rates import answers_of

MOST_KINDS = 8
"""Maximum kinds of one slice name with a row of their own; rarer kinds are combined."""
OTHERS = "others"
"""Those combined."""


def slices(episodes: dict[str, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """One row per slice, a name and a kind: the number of questions, and the accuracy with its interval of each model
    that was asked all of them.

    The names are the environment's (terms, digits, sign, …), and the number of turns of the last model.
    """
    most = max(map(len, episodes.values()))
    values = {name: answers_of(records) for name, records in episodes.items() if len(records) == most}
    rows = []
    for (slice_name, kind), places in places_of_slices(episodes).items():
        models = {}
        for name, by_question in values.items():
            right = [by_question[place] for place in places]
            accuracy = sum(sum(samples) / len(samples) for samples in right) / len(right)
            models[name] = {"accuracy": accuracy, "ci": clustered_interval(right)}
        rows.append({"trait": slice_name, "kind": kind, "n": len(places), "models": models})
    return rows


def places_of_slices(episodes: dict[str, list[EvaluatedEpisode]]) -> dict[tuple[str, str], list[int]]:
    """The questions of each slice (its name and kind), by the place of their first sample."""
    question_slices = _slices_that_differ(list(episodes.values())[-1])
    return {
        (slice_name, kind): places
        for slice_name, kinds in question_slices.items()
        for kind, places in grouped(kinds).items()
    }


def _slices_that_differ(records: list[EvaluatedEpisode]) -> dict[str, dict[int, int | str]]:
    """The kind of every question by each slice name that has several kinds and does not duplicate another. `turns` is
    one only where each question has one sample."""
    several = any(record.sample for record in records)
    found: dict[str, dict[int, int | str]] = {}
    for record in records:
        if record.sample == 0:
            turns = {} if several else {"turns": record.turns}
            for slice_name, kind in (json.loads(record.traits) | turns).items():
                found.setdefault(slice_name, {})[record.place] = kind
    different: dict[str, dict[int, int | str]] = {}
    for slice_name, kinds in found.items():
        if len(set(kinds.values())) > 1 and kinds not in different.values():  # a word is as long as its reverse
            different[slice_name] = kinds
    return different


def grouped(kinds: dict[int, int | str]) -> dict[str, list[int]]:
    """The places of each kind, in the order of the kinds, with the rarest ones combined as "others"."""
    groups: dict[int | str, list[int]] = {}
    for place, kind in kinds.items():
        groups.setdefault(kind, []).append(place)
    frequent = sorted(groups, key=lambda kind: -len(groups[kind]))[:MOST_KINDS]
    order: Callable[[int | str], Any] = lambda kind: (isinstance(kind, str), kind)  # noqa: E731
    named = {str(kind): groups[kind] for kind in sorted(frequent, key=order)}
    rest = [place for kind, places in groups.items() if kind not in frequent for place in places]
    return named | ({OTHERS: rest} if rest else {})
