"""What is said of the kept episodes before a student learns from them."""

from pathlib import Path
from typing import Any, TypeVar

import pytest

from apprentice.flows.lessons import warn_of_limits
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.artifacts.alike import newest_first
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact, KeptRollouts, LengthStats, SftCheckpoint
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.reporting import announce
from apprentice.tasks.training.method import Lessons
from tests.flows.commands import TOY, Ran

A = TypeVar("A", bound=Artifact)


@pytest.mark.parametrize(
    ("sets", "fields"),
    [
        ([], []),
        (["evaluate.max_new_tokens=4"], ["evaluate.max_new_tokens"]),
        (["grpo.max_completion_length=4"], ["grpo.max_completion_length"]),
        (["evaluate.max_new_tokens=4", "grpo=off"], ["evaluate.max_new_tokens"]),
        (["evaluate.max_new_tokens=4", "student.thinking=text"], []),
    ],
)
def test_a_limit_below_what_the_teacher_writes_is_named_with_one_that_has_room(
    toy_run: Ran, toy_home: Path, monkeypatch: pytest.MonkeyPatch, sets: list[str], fields: list[str]
):
    warned: list[str] = []
    monkeypatch.setattr(announce, "warn", warned.append)
    run = RunContext(LocalStore(toy_home / "artifacts", project="toy"), StandingServers({}, None))
    lessons = Lessons(None, newest(run, KeptRollouts), newest(run, LengthStats))
    warn_of_limits(run, *sections(sets), lessons, newest(run, SftCheckpoint))
    assert [each.split(" of more than ")[1].split(" ")[0] for each in warned] == fields
    if warned:
        remedies = [each.split("is cut off. ")[1].split(" has room")[0].replace(": ", "=") for each in warned]
        warn_of_limits(run, *sections([*sets, *remedies]), lessons, newest(run, SftCheckpoint))
        assert len(warned) == len(fields), "the remedy is enough"


def sections(sets: list[str]) -> tuple[Any, Any, Any]:
    recipe = load_recipe(TOY, sets)
    return (
        recipe.evaluate,
        [each for name in recipe.trains_on if (each := recipe.training(name))],
        recipe.student.thinking,
    )


def newest(run: RunContext, kind: type[A]) -> A:
    return newest_first(run.store, kind, run.store.tags(kind, ""))[0][0]
