"""What became of each episode of an evaluation: right, or the kind of its failure.

In: the episodes of several models on the same questions. Out: one word an episode, and counts for tables.
"""

import itertools
from collections import Counter
from typing import Any

from apprentice.tasks.episodes.record import EvaluatedEpisode

RIGHT = "right"
BROKE = "environment failed"


def kind_of(record: EvaluatedEpisode) -> str:
    """Right, or why not: the environment, the first fault of a call, or the answer."""
    if record.is_right:
        return RIGHT
    if record.broken:
        return BROKE
    return record.causes[0] if record.causes else "partly right" if record.score > 0 else "wrong answer"


def failures_by_kind(episodes: dict[str, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """One row per kind of failure, the last model's most frequent first: the number of episodes of each model."""
    counts = {name: Counter(map(kind_of, records)) for name, records in episodes.items()}
    kinds = {kind: [counts[name][kind] for name in reversed(counts)] for name in counts for kind in counts[name]}
    kinds.pop(RIGHT, None)
    ordered = sorted(kinds, key=lambda kind: kinds[kind], reverse=True)
    return [{"kind": kind, "models": {name: counts[name][kind] for name in counts}} for kind in ordered]


def both_ways(episodes: dict[str, list[EvaluatedEpisode]], pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """For each pair of models, on how many episodes of the same place both, one or none of them is right."""
    found = []
    for one, other in pairs:
        after = {record.place: record.is_right for record in episodes[other]}
        cells = Counter((record.is_right, after[record.place]) for record in episodes[one])
        named = dict(zip(("both", "lost", "won", "neither"), itertools.product((True, False), repeat=2), strict=True))
        found.append({"from": one, "to": other} | {name: cells[cell] for name, cell in named.items()})
    return found
