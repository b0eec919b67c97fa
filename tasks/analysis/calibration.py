"""Compares the teacher's answers with the environment's own, to check both the teacher and the scorer.

In: `Rollouts`. Out: the teacher's accuracy with its interval, overall and by kind of question, and how often the reward
disagrees with a text comparison to the environment's answer (a lenient scorer, or several right answers).
"""

import json
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment, traits_of
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.slices import OTHERS, grouped
from apprentice.tasks.analysis.statistics import rate_interval


def calibration(rollouts: Path, environment: EnvironmentSpec) -> dict[str, Any]:
    """Measures the teacher's accuracy. Episodes without a valid call count as wrong; those lost to infrastructure are
    counted separately."""
    instance = environment.make()
    lost = 0
    right: dict[int, float] = {}
    kinds: dict[str, dict[int, int | str]] = {}
    compared = {"same text, right": 0, "same text, not right": 0, "other text, right": 0, "other text, not right": 0}
    with (rollouts / "rollouts.jsonl").open() as lines:
        for place, row in enumerate(map(json.loads, lines)):
            if not _counts(row):
                lost += 1
                continue
            right[place] = float(row["reward"] == 1.0)
            if len(row["messages"]) > 1:
                for trait, kind in traits_of(instance, row["seed"], row["messages"][1]["content"]).items():
                    kinds.setdefault(trait, {})[place] = kind
            answer = _handed_in(row["messages"])
            if row["correct"] and answer is not None:
                same = "same text" if answer.strip() == row["correct"].strip() else "other text"
                compared[f"{same}, {'right' if right[place] else 'not right'}"] += 1
    return {
        "episodes": len(right),
        "lost": lost,
        **_rate(list(right.values())),
        "compared": compared,
        "slices": [
            {"trait": trait, "kind": kind, "n": len(places), **_rate([right[place] for place in places])}
            for trait, by_place in kinds.items()
            for kind, places in grouped(by_place).items()
            if len(places) < len(right)
        ],
    }


def slices_of(row: dict[str, Any], environment: ToolEnvironment, measured: list[dict[str, Any]]) -> list[str]:
    """The slices among those that `calibration` measured to which one of its episodes belongs, as "trait kind"."""
    if not _counts(row) or len(row["messages"]) < 2:
        return []
    shown = {(each["trait"], each["kind"]) for each in measured}
    traits = traits_of(environment, row["seed"], row["messages"][1]["content"])
    named = ((trait, str(kind) if (trait, str(kind)) in shown else OTHERS) for trait, kind in traits.items())
    return [f"{trait} {kind}" for trait, kind in named if (trait, kind) in shown]


def _counts(row: dict[str, Any]) -> bool:
    """Whether an episode says something of the teacher, and not of infrastructure alone."""
    return row["failed_at"] in ("", "teacher")


def _rate(right: list[float]) -> dict[str, Any]:
    return {"accuracy": sum(right) / len(right), "ci": rate_interval(right)}


def _handed_in(messages: list[dict[str, Any]]) -> str | None:
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    try:
        given = json.loads(calls[-1]["function"]["arguments"]) if calls else None
    except json.JSONDecodeError:
        return None
    return str(next(iter(given.values()))) if isinstance(given, dict) and len(given) == 1 else None
