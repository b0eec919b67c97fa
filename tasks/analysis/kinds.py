"""The outcome of an episode: in an evaluation right, or the kind of its failure; in rollouts kept, or why dropped.

Also explains tool calls that do not parse; the cause may be a single invisible character.
"""

import json
import re
from collections import Counter
from collections.abc import Set
from typing import Any

from apprentice.tasks.episodes.episode import problems
from apprentice.tasks.episodes.record import EvaluatedEpisode, same_text
from apprentice.tasks.reporting.safe_text import visible

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


WRITTEN = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
"""A call in the chat template's format; a call that does not parse stays in the message's text."""


def faults_of_calls(messages: list[dict[str, Any]]) -> list[str]:
    faults = []
    for message in messages:
        if message["role"] != "assistant":
            continue
        for body, end in WRITTEN.findall(message.get("content") or ""):
            faults.append(_fault(body, end))
        faults += [_json_fault(call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return [fault for fault in faults if fault]


def _fault(body: str, end: str) -> str:
    if not end:
        return "it breaks off before </tool_call>"
    if fault := _json_fault(body):
        return fault
    called = json.loads(body)
    if not isinstance(called, dict) or not {"name", "arguments"} <= called.keys():
        return "it is not an object with name and arguments"
    return ""


def _json_fault(text: Any) -> str:
    try:
        json.loads(text) if isinstance(text, str) else None
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 1]
        at = f"at {visible(found)!r}" if found.isprintable() and found else f"at the invisible {visible(found)}"
        return f"{error.msg}, character {error.pos + 1}, {at if found else 'at its end'}"
    except RecursionError:
        return "it is nested too deeply"
    return ""
