"""The outcome of an episode: in an evaluation right, or the kind of its failure; in rollouts kept, or why dropped.

In: evaluated episodes, or the teacher's. Out: a kind in a few words, counts by kind, and pairs of models.
"""

import json
import re
from collections import Counter
from collections.abc import Set
from typing import Any

from apprentice.envs.reward import is_right
from apprentice.tasks.analysis.thought_faults import MARK, Check
from apprentice.tasks.episodes.episode import last_text, problems
from apprentice.tasks.episodes.notations import ATTRIBUTES
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.texts import same_text

THOUGHTS = rf"</?(?:think|thinking|thought|reasoning){ATTRIBUTES}>|<\|channel\|>"
"""What no text may hold, a last one neither."""
LEAKED = re.compile(rf"{THOUGHTS}|{MARK.pattern}", re.IGNORECASE)
"""What no text beside a thought may hold."""
REASONING = re.compile(
    rf"{THOUGHTS}|step by step|\blet(?:'s| me| us) (?:think|see|figure)"
    r"|\bI (?:need|should|have) to\b|^\s*(?:okay|hmm|wait|first)\b",
    re.IGNORECASE,
)
"""What a text beside a call holds where it is reasoning."""
RIGHT = "right"
BROKE = "environment failed"
CELLS = {"both": (True, True), "lost": (True, False), "won": (False, True), "neither": (False, False)}
"""By name, whether the one model is right, and the other."""


def outcome_of(record: EvaluatedEpisode) -> str:
    """Right, or why not: the environment, the answer, or a fault of the calls.

    In a game of several turns the last one decides: a model that made calls and then none broke off, and a fault counts
    only where every turn had one.
    """
    if record.is_right:
        return RIGHT
    if record.broken:
        return BROKE
    if after := record.broke_off_after:
        return f"broke off after {after}"
    if record.causes and len(record.causes) >= record.turns:
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


def why_dropped(episode: dict[str, Any], evaluation_texts: Set[str], thoughts: Check | None = None) -> str | None:
    """The first reason to drop an episode, or None to keep it.

    Args:
        thoughts: What is wrong with the thought of a turn, for a student that thinks. Without it no turn may reason.
    """
    if episode["failed_at"]:
        return f"failed at the {episode['failed_at']}"
    if not is_right(episode["reward"]):
        return "wrong answer"
    tools = json.loads(episode["tools"])
    turns = [message for message in episode["messages"] if message["role"] == "assistant"]
    for turn in turns:
        ends = turn is turns[-1] and bool(episode.get("takes_text") and last_text(turn, tools))
        if found := [] if ends else problems(turn, tools):
            return found[0]
        text = turn.get("content") or ""
        if thoughts is not None:
            if cause := thoughts(turn, tools):
                return cause
            leak = LEAKED.search(text)
        else:
            leak = re.search(THOUGHTS, text, re.IGNORECASE) if ends else REASONING.search(text)
        if leak or (thoughts is None and turn.get("reasoning_content")):
            return "leaked reasoning text"
    if same_text(episode["messages"][1]["content"]) in evaluation_texts:
        return "stands in the evaluation set"
    return None
