"""Which changes of a recipe did not help: those between its earlier runs, read from the store.

In: the store of a project. Out: the fields of the recipe that were changed alone, without a better model. Two runs are
compared that have the same seed and differ in one field, by the accuracy of their last models on held-out questions.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any, NamedTuple

from apprentice.tasks.artifacts.alike import newest_first
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import leaves
from apprentice.tasks.artifacts.types import Verdict
from apprentice.tasks.judgement.contents import VerdictContents, read_verdict
from apprentice.tasks.reporting.errors import Stop

TOGETHER = {
    "student.build.intermediate_size": "student.build.hidden_size",
    "windows.evaluate.size": "evaluate.questions",
    "grpo.batch_size": "grpo.num_generations",
}
"""Fields that change with another one, by the remedies."""
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
    """The plain runs of a project that the store's folder has, the first one first. Those whose verdict is gone are
    left out."""
    found = []
    for verdict, record in newest_first(store, Verdict, store.here(Verdict)):
        recipe = record.provenance.recipe
        with suppress(Stop):  # its files are gone, or damaged: then its run says nothing
            if recipe and not recipe.get("round"):
                found.append(attempt(recipe, read_verdict(store.fetch(verdict))))
    return found[::-1]


def attempt(recipe: Mapping[str, Any], verdict: VerdictContents) -> Attempt:
    model = verdict.models.last
    return Attempt(recipe, model.accuracy, model.ci["accuracy"][1])


def in_vain(attempts: list[Attempt], now: Attempt) -> set[str]:
    """The fields that were changed from an earlier run without a better model, on the way to the run of `now`.

    Args:
        attempts: The earlier runs; the present one may be among them.
    """
    pairs = combinations([*attempts, now], 2)
    worse = [(before.recipe, after.recipe) for before, after in pairs if after.accuracy <= before.most]
    return {field for each in worse if (field := changed_field(*each))}


def changed_field(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The one field in which two recipes differ, with those that belong to it; empty if there are several or none."""
    then, now = dict(leaves(before)), dict(leaves(after))
    differ = {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}
    if any(name.startswith("student.") and not name.startswith("student.build.") for name in differ):
        others = [name for name in differ if not name.startswith(("student.", *OF_THE_STUDENT))]
        return "" if others else "student"
    differ -= {name for name, main in TOGETHER.items() if main in differ}
    return next(iter(differ)) if len(differ) == 1 else ""
