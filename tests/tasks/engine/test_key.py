"""Law 10: what enters an artifact's key: the stage, its version, every input and setting; and what does not."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from apprentice import tasks
from apprentice.tasks.artifacts.types import Questions, make_key
from apprentice.tasks.engine.stage import Stage, StageContext, stage
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import CollectSpec, Window
from apprentice.tasks.trainings import TRAININGS


@pytest.mark.parametrize(
    "other",
    [
        ("grpo", 1, {"seed": 0}, {"kept": "a"}),
        ("sft", 2, {"seed": 0}, {"kept": "a"}),
        ("sft", 1, {"seed": 1}, {"kept": "a"}),
        ("sft", 1, {"seed": 0}, {"kept": "b"}),
        ("sft", 1, {"seed": 0}, {"student": "a"}),
        ("sft", 1, {"seed": 0}, {}),
        ("sft", 1, {}, {"kept": "a"}),
    ],
)
def test_another_stage_version_setting_or_input_is_another_key(other: tuple[str, int, dict[str, Any], dict[str, str]]):
    assert make_key(*other) != make_key("sft", 1, {"seed": 0}, {"kept": "a"})


def test_a_key_does_not_hang_on_the_order_of_the_settings_and_is_the_same_for_ever():
    one, other = (make_key("sft", 1, settings, {}) for settings in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert one == other == "d4bf70dce5d1c8999b92"


def test_how_fast_and_how_dear_is_no_part_of_a_key():
    dear = TeacherSpec.model_validate(
        {"budget_usd": 1.0, "prices": {"prompt": 1.0, "completion": 1.0}, "requests_per_minute": 5, "timeout": 3}
    )
    assert dear.in_key() == TeacherSpec().in_key()
    assert CollectSpec(shards=4).in_key() == CollectSpec().in_key()
    assert TeacherSpec(model="another").in_key() != TeacherSpec().in_key()


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_a_split_window_is_the_window(parts: int):
    window = Window(start=100, size=7)
    split = window.split(parts)
    assert [seed for part in split for seed in part.seeds()] == list(window.seeds())
    assert max(part.size for part in split) - min(part.size for part in split) <= 1


def test_several_artifacts_under_one_argument_all_enter_the_key():
    @stage(produces=Questions, version=1, title="toy")
    def compared(context: StageContext, models: dict[str, Questions]) -> dict[str, Any]:
        raise AssertionError("not run here")

    one, other = (
        Questions(repository="a/r", revision=letter * 40, key="k", collect=0, grpo=0, evaluate=0, dropped_from_grpo=0)
        for letter in "ab"
    )
    assert compared.key_contents(({"before": one, "after": other},), {})[1] == {
        "models.before": "a" * 40,
        "models.after": "b" * 40,
    }
    assert compared.key(({"before": one, "after": other},), {}) != compared.key(({"before": other, "after": one},), {})


VERSIONS = {
    "take_rollouts": 2,
    "collect": 3,
    "collect_shard": 2,
    "rescore": 1,
    "scale_rollouts": 1,
    "relabel": 1,
    "filter_rollouts": 2,
    "filter_thoughts": 4,
    "mix_rollouts": 1,
    "mix_thoughts": 3,
    "tried_questions": 1,
    "lengths": 2,
    "student": 5,
    "sft": 4,
    "grpo": 5,
    "dpo": 1,
    "evaluate": 5,
    "evaluate_endpoint": 1,
    "verdict": 4,
    "gate": 3,
    "release": 1,
    "export": 1,
    "questions": 2,
    "exam": 1,
    "rung_questions": 1,
    "probe_questions": 1,
    "fresh_questions": 2,
}
"""Raise a version here and in its stage when what the stage makes changes: all artifacts of it are made anew."""


def test_a_stage_is_not_made_anew_by_accident():
    found = {}
    for module in iter_modules(tasks.__path__):
        found |= vars(import_module(f"apprentice.tasks.{module.name}"))
    stages = {each.name: each for each in found.values() if isinstance(each, Stage)}
    assert {name: each.version for name, each in stages.items()} == VERSIONS
    assert {name for name, each in stages.items() if each.gpu} == {"evaluate", *(each.name for each in TRAININGS)}
