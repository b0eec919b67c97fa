"""Accuracy by kind of question, and the episodes most worth reading.

In: the episodes of one or several models on the same questions. Out: rows for tables, episodes for reading.
"""

import json
from collections.abc import Callable
from typing import Any

from apprentice.tasks.analysis.statistics import rate_interval
from apprentice.tasks.episodes.record import EvaluatedEpisode

MOST_KINDS = 8
"""Maximum kinds of one trait with a row of their own; rarer kinds are combined."""
OTHERS = "others"
"""Those combined."""
FAILURES = 10
SAMPLES = 4

Episodes = dict[str, list[EvaluatedEpisode]]


def slices(episodes: Episodes) -> list[dict[str, Any]]:
    """One row per trait and kind: the number of questions, and each model's accuracy with its interval.

    The traits are the environment's (terms, digits, sign, …), and the number of turns of the last model.
    """
    values = {name: _by_question(records) for name, records in episodes.items()}
    rows = []
    for (trait, kind), places in places_of_slices(episodes).items():
        models = {}
        for name, by_question in values.items():
            right = [by_question[place] for place in places]
            models[name] = {"accuracy": sum(right) / len(right), "ci": rate_interval(right)}
        rows.append({"trait": trait, "kind": kind, "n": len(places), "models": models})
    return rows


def places_of_slices(episodes: Episodes) -> dict[tuple[str, str], list[int]]:
    """The questions of each trait and kind, by the place of their first sample."""
    traits = _traits(list(episodes.values())[-1])
    return {(trait, kind): places for trait, kinds in traits.items() for kind, places in grouped(kinds).items()}


def _by_question(records: list[EvaluatedEpisode]) -> dict[int, float]:
    samples: dict[int, list[bool]] = {}
    for record in records:
        samples.setdefault(record.place - record.sample, []).append(record.is_right)
    return {place: sum(right) / len(right) for place, right in samples.items()}


def _traits(records: list[EvaluatedEpisode]) -> dict[str, dict[int, int | str]]:
    """The kind of every question for each trait that has several kinds and does not duplicate another trait. `turns` is
    a trait only where each question has one sample."""
    several = any(record.sample for record in records)
    found: dict[str, dict[int, int | str]] = {}
    for record in records:
        if record.sample == 0:
            turns = {} if several else {"turns": record.turns}
            for trait, kind in (json.loads(record.traits) | turns).items():
                found.setdefault(trait, {})[record.place] = kind
    different: dict[str, dict[int, int | str]] = {}
    for trait, kinds in found.items():
        if len(set(kinds.values())) > 1 and kinds not in different.values():  # a word is as long as its reverse
            different[trait] = kinds
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


def worst(episodes: Episodes) -> list[EvaluatedEpisode]:
    """The last model's ten worst failures: first those that an earlier model got right, then by lowest reward, then
    those without a valid call."""
    *earlier, last = episodes.values()
    once_right = {record.place for records in earlier for record in records if record.is_right}
    failed = [record for record in last if not record.is_right]
    return sorted(failed, key=lambda r: (r.place not in once_right, r.score, r.valid, r.place))[:FAILURES]


def side_by_side(episodes: Episodes) -> list[dict[str, Any]]:
    """Questions on which the models differ, with each model's answer; filled up with the first questions."""
    places = [record.place for record in next(iter(episodes.values())) if record.sample == 0]
    by_place = {name: {record.place: record for record in records} for name, records in episodes.items()}

    def differ(place: int) -> bool:
        return len({records[place].is_right for records in by_place.values()}) > 1

    chosen = sorted(places, key=lambda place: (not differ(place), place))[:SAMPLES]
    rows = []
    for place in sorted(chosen):
        played = {name: records[place] for name, records in by_place.items()}
        first = next(iter(played.values()))
        correct = next((record.correct for record in played.values() if record.correct), "")
        answers = {name: {"said": text_of_turns(record), "reward": record.reward} for name, record in played.items()}
        rows.append({"seed": first.seed, "question": first.question, "correct": correct, "models": answers})
    return rows


def text_of_turns(record: EvaluatedEpisode) -> str:
    """The model's messages in an episode: calls as `tool(arguments)`, turns separated by arrows."""
    return " → ".join(_line(message) for message in record.messages if message["role"] == "assistant")


def _line(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return " ".join([message.get("content") or "", *calls]).strip()
