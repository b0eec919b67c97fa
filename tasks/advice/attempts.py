"""Which changes of a recipe did not help: those between its earlier runs, read from the store.

In: the store of a project. Out: the fields of the recipe that were changed alone, without a better model. Two runs are
compared that have the same seed and differ in one field, by the accuracy of their last models on held-out questions.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple

from apprentice.tasks.advice.ending import read_verdict
from apprentice.tasks.analysis.history import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.judgement.contents import VerdictContents

TOGETHER = {
    "student.build.intermediate_size": "student.build.hidden_size",
    "windows.evaluate.size": "evaluate.questions",
}
"""Fields that change with another one."""
OF_THE_STUDENT = ("precision", "sft.", "grpo.")
"""Where fields change with the student."""


class Attempt(NamedTuple):
    """A finished run of the recipe."""

    recipe: Mapping[str, Any]
    """As its record has it."""
    accuracy: float
    """Of its last model."""
    most: float
    """The upper end of its interval."""


def attempts_of(store: LocalStore) -> list[Attempt]:
    """The plain runs of a project, the first one first. Those whose verdict is gone are left out."""
    found = []
    for past in past_rounds(store):
        judged = past.node.inputs.get("judged")
        folder = judged.fetch() if judged else None
        if folder is not None and not past.recipe.get("round") and past.recipe:
            found.append(attempt(past.recipe, read_verdict(folder)))
    return found


def attempt(recipe: Mapping[str, Any], verdict: VerdictContents) -> Attempt:
    model = verdict.models.last
    return Attempt(recipe, model.accuracy, model.ci["accuracy"][1])


def in_vain(attempts: list[Attempt], now: Attempt) -> set[str]:
    """The fields that were changed from an earlier run without a better model, on the way to the run of `now`.

    Args:
        attempts: The earlier runs; the present one may be among them.
    """
    known = [*attempts, now]
    found = set()
    for before, after in permutations(known, 2):
        if known.index(before) < known.index(after) and after.accuracy <= before.most:
            field = changed_field(before.recipe, after.recipe)
            found |= {field} if field else set()
    return found


def changed_field(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The one field in which two recipes differ, with those that belong to it; empty if there are several or none."""
    then, now = _leaves(before), _leaves(after)
    differ = {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}
    if any(name.startswith("student.") and not name.startswith("student.build.") for name in differ):
        others = [name for name in differ if not name.startswith(("student.", *OF_THE_STUDENT))]
        return "" if others else "student"
    differ = {TOGETHER.get(name, name) for name in differ}
    return next(iter(differ)) if len(differ) == 1 else ""


def _leaves(recipe: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in recipe.items():
        within = f"{path}{name}"
        found |= _leaves(value, f"{within}.") if isinstance(value, Mapping) else {within: value}
    return found
