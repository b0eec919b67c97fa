"""The episodes of an evaluation that are most worth reading.

In: evaluated episodes of several models on the same questions. Out: the worst failures, questions on which the models
differ, and an episode as one line.
"""

from typing import Any

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import THOUGHT

FAILURES = 10
SAMPLES = 4


def worst(episodes: dict[str, list[EvaluatedEpisode]]) -> list[EvaluatedEpisode]:
    """The last model's ten worst failures: first those that an earlier model got right, then by lowest reward, then
    those without a valid call."""
    *earlier, last = episodes.values()
    once_right = {record.place for records in earlier for record in records if record.is_right}
    failed = [record for record in last if not record.is_right]
    return sorted(failed, key=lambda r: (r.place not in once_right, r.score, r.valid, r.place))[:FAILURES]


def side_by_side(episodes: dict[str, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """Questions on which the models differ, with each model's answer; filled up with the first questions."""
    places = [record.place for record in next(iter(episodes.values())) if record.sample == 0]
    by_place = {name: {record.place: record for record in records} for name, records in episodes.items()}
    differ = {place for place in places if len({records[place].is_right for records in by_place.values()}) > 1}
    rows = []
    for place in sorted(sorted(places, key=lambda place: (place not in differ, place))[:SAMPLES]):
        played = {name: records[place] for name, records in by_place.items()}
        first = next(iter(played.values()))
        correct = next((record.correct for record in played.values() if record.correct), "")
        answers = {name: {"said": text_of_turns(record), "reward": record.reward} for name, record in played.items()}
        rows.append({"seed": first.seed, "question": first.question, "correct": correct, "models": answers})
    return rows


def text_of_turns(record: EvaluatedEpisode, most: int | None = None) -> str:
    """The model's messages in an episode: calls as `tool(arguments)`, turns separated by arrows.

    Args:
        most: Characters of a thought, whose rest is left out.
    """
    return " → ".join(_line(message, most) for message in record.messages if message["role"] == "assistant")


def _line(message: dict[str, Any], most: int | None = None) -> str:
    """One message of a model, likewise."""
    thought = message.get(THOUGHT) or ""
    if most is not None and len(thought) > most:
        thought = f"{thought[:most]}…"
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return " ".join(filter(None, [thought, message.get("content"), *calls])).strip()
