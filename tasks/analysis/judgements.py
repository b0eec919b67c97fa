"""Reads verdicts and the gate's decisions.

In: an artifact's folder. Out: the verdict, the decision, its rules, and the decision as Markdown.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks.reporting.text import markdown_table
from apprentice.tasks.settings.stages import GateSpec

WITHOUT_TEACHER = 0.2
"""The floor where no teacher's rate is known."""


def read_verdict(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "verdict.json").read_text())


def unclean(shared: dict[str, Any]) -> str:
    """The reason why nothing is compared, with advice."""
    return (
        f"Nothing was compared: training has seen {shared['shared_with_training']} of the {shared['questions']} "
        f"questions by text ({shared['share']:.1%}; gate.max_overlap allows {shared['limit']:.1%}) and "
        f"{shared['shared_seeds']} by seed. Move windows.evaluate or widen the task (environment.settings)."
    )


def decided_by(spec: GateSpec, allowances: dict[str, float]) -> dict[str, Any]:
    """The rules as a decision records them, to detect later whether the recipe's rules have changed."""
    return {"gate": spec.in_key(), "guards": allowances, "has_floor": True}


def floor_of(spec: GateSpec, verdict: dict[str, Any]) -> tuple[float, str]:
    """What the gate's metric must reach at least, and where that number comes from."""
    if spec.at_least is not None:
        return spec.at_least, "gate.at_least"
    teacher = verdict.get("teacher")
    if teacher is None:
        return WITHOUT_TEACHER, "gate.at_least, by default"
    return teacher["accuracy"] / 2, f"half of the teacher's {teacher['accuracy']:.1%}"


def read_decision(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "decision.json").read_text())


def rival_of(decision: dict[str, Any]) -> str:
    """Whom the challenger was compared with, in words."""
    rivals = {"champion": "the champion", "base": "the untrained student; there was no champion"}
    return rivals.get(decision["rival"], "the model that it began from; there was no champion")


def as_markdown(decision: dict[str, Any]) -> str:
    """The decision as Markdown: promoted or not, and every rule with its finding."""
    idle = {
        f"guard rail {row['guard']}": f" It was at {row['before']['accuracy']:.1%}: it could not fall by more."
        for row in decision.get("guards", [])
        if row["before"]["accuracy"] <= decision["decided_by"]["guards"][row["guard"]]
    }
    rows = [
        {
            "rule": rule["rule"],
            "holds": "yes" if rule["holds"] else "**no**",
            "found": rule["found"] + idle.get(rule["rule"], ""),
        }
        for rule in decision["rules"]
    ]
    outcome = "Promoted" if decision["promoted"] else "Not promoted"
    return f"**{outcome}**, compared with {rival_of(decision)}.\n\n{markdown_table(rows)}"
