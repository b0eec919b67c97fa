"""What became of an episode: of an evaluation right, or the kind of its failure; of rollouts kept, or why dropped.

In: episodes, of an evaluation those of several models on the same questions. Out: one word an episode, and counts.
"""

import json
import re
from collections import Counter
from collections.abc import Set
from typing import Any

from apprentice.tasks.episodes.episode import problems
from apprentice.tasks.episodes.jsonl import same_text
from apprentice.tasks.episodes.record import EvaluatedEpisode

REASONING = re.compile(
    r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|>|step by step|\blet(?:'s| me| us) (?:think|see|figure)"
    r"|\bI (?:need|should|have) to\b|^\s*(?:okay|hmm|wait|first)\b",
    re.IGNORECASE,
)
"""What a text beside a call holds where it is reasoning."""
RIGHT = "right"
BROKE = "environment failed"
CELLS = {"both": (True, True), "lost": (True, False), "won": (False, True), "neither": (False, False)}
"""By name, whether the one model is right, and the other."""


def outcome_of(record: EvaluatedEpisode) -> str:
    """Right, or why not: the environment, the first fault of a call, or the answer."""
    if record.is_right:
        return RIGHT
    if record.broken:
        return BROKE
    if record.causes:
        return record.causes[0]
    return "partly right" if record.score > 0 else "no answer in its turns" if record.unfinished else "wrong answer"


def failures_by_kind(episodes: dict[str, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """One row per kind of failure, the last model's most frequent first: the number of episodes of each model."""
    counts = {name: Counter(map(outcome_of, records)) for name, records in episodes.items()}
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
        found.append({"from": one, "to": other} | {name: cells[cell] for name, cell in CELLS.items()})
    return found


def why_dropped(episode: dict[str, Any], examined: Set[str]) -> str | None:
    """The first reason to drop an episode, or None to keep it."""
    if episode["failed_at"]:
        return f"failed at the {episode['failed_at']}"
    if episode["reward"] != 1.0:
        return "wrong answer"
    tools = json.loads(episode["tools"])
    turns = [message for message in episode["messages"] if message["role"] == "assistant"]
    for turn in turns:
        found = problems(turn, tools)
        if found:
            return found[0]
        if REASONING.search(turn.get("content") or "") or turn.get("reasoning_content"):
            return "leaked reasoning text"
    if same_text(episode["messages"][1]["content"]) in examined:
        return "stands in the evaluation set"
    return None
