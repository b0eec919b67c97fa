"""The teacher's accuracy, overall and by slice, and how the scorer agrees with the environment's own answers.

In: rollouts and their environment. Out: rates with intervals, counts, and the slices of one episode.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.reward import is_right
from apprentice.tasks.episodes.record import arguments_of, ends_in_text
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.statistics.intervals import clustered_interval
from apprentice.tasks.statistics.slices import OTHERS, grouped


def calibration(rollouts: Path, environment: EnvironmentSpec) -> dict[str, Any]:
    """Measures the teacher's accuracy. Episodes without a valid call count as wrong; those lost to infrastructure are
    counted separately."""
    instance = environment.make()
    lost = 0
    right: dict[int, float] = {}
    questions: dict[int, str | int] = {}
    kinds: dict[str, dict[int, int | str]] = {}
    compared = {"same text, right": 0, "same text, not right": 0, "other text, right": 0, "other text, not right": 0}
    with (rollouts / "rollouts.jsonl").open() as lines:
        for place, row in enumerate(map(json.loads, lines)):
            if not _counts(row):
                lost += 1
                continue
            right[place] = float(is_right(row["reward"]))
            questions[place] = place
            if len(row["messages"]) > 1:
                questions[place] = same_text(row["messages"][1]["content"])
                for slice_name, kind in instance.slices(row["seed"], row["messages"][1]["content"]).items():
                    kinds.setdefault(slice_name, {})[place] = kind
            answer = _handed_in(row)
            if row["correct"] and answer is not None:
                same = "same text" if answer.strip() == row["correct"].strip() else "other text"
                compared[f"{same}, {'right' if right[place] else 'not right'}"] += 1
    return {
        "episodes": len(right),
        "lost": lost,
        **_rate(right, questions, right),
        "compared": compared,
        "slices": [
            {"trait": slice_name, "kind": kind, "n": len(places), **_rate(right, questions, places)}
            for slice_name, by_place in kinds.items()
            for kind, places in grouped(by_place).items()
            if len(places) < len(right)
        ],
    }


def slices_of(row: dict[str, Any], player: Player, measured: list[dict[str, Any]]) -> list[str]:
    """The slices among those that `calibration` measured to which one of its episodes belongs, as "name kind"."""
    if not _counts(row) or len(row["messages"]) < 2:
        return []
    shown = {(each["trait"], each["kind"]) for each in measured}
    question_slices = player.slices(row["seed"], row["messages"][1]["content"])
    named = (
        (slice_name, str(kind) if (slice_name, str(kind)) in shown else OTHERS)
        for slice_name, kind in question_slices.items()
    )
    return [f"{slice_name} {kind}" for slice_name, kind in named if (slice_name, kind) in shown]


def _counts(row: dict[str, Any]) -> bool:
    """Whether an episode says something of the teacher, and not of infrastructure alone."""
    return row["failed_at"] in ("", "teacher")


def _rate(right: dict[int, float], questions: dict[int, str | int], places: Iterable[int]) -> dict[str, Any]:
    """The share of some episodes that is right, with its interval: a question may be asked under several seeds."""
    by_question: dict[str | int, list[float]] = {}
    for place in places:
        by_question.setdefault(questions[place], []).append(right[place])
    answers = [each for group in by_question.values() for each in group]
    return {"accuracy": sum(answers) / len(answers), "ci": clustered_interval(by_question.values())}


def _handed_in(row: dict[str, Any]) -> str | None:
    """The only argument of the last call, or the last text where that is scored; None without one."""
    messages = row["messages"]
    if row.get("takes_text") and ends_in_text(messages):
        return messages[-1]["content"]
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    given = arguments_of(calls[-1]) if calls else None
    return str(next(iter(given.values()))) if isinstance(given, dict) and len(given) == 1 else None
