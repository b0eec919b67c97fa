"""Which model's skills the regression evaluations protect before there is a champion."""

import pytest

from apprentice.flows.pipeline import Pipeline
from apprentice.flows.recipe import recipe as of_recipe
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.types import BaseStudent, Checkpoint
from tests.flows.commands import TOY


def baseline(recipe: Recipe, base: Checkpoint, last: str) -> str:
    stages = Pipeline(None, recipe, base=base)  # type: ignore[arg-type]  # no stage runs
    stages.models[last] = base
    return stages.protected()


BASE = BaseStudent(repository="local/toy-base", revision="0" * 40, key="0" * 20, parameters=1)


def test_a_student_with_random_weights_has_skills_to_lose_only_after_sft():
    assert baseline(load_recipe(TOY, []), BASE, "grpo") == "sft"


def test_without_a_further_training_nothing_has_skills_before_it():
    assert baseline(load_recipe(TOY, ["grpo=off"]), BASE, "sft") == "base"


def test_a_training_that_a_recipe_does_not_use_changes_no_baseline(monkeypatch: pytest.MonkeyPatch):
    """The baseline is part of the gate's key: another training in the list must not move it for the runs that exist."""
    monkeypatch.setattr(of_recipe, "TRAINING_SECTIONS", ["sft", "grpo", "another"])
    monkeypatch.setattr(of_recipe.Recipe, "another", None, raising=False)
    assert baseline(load_recipe(TOY, []), BASE, "grpo") == "sft"


def test_a_pretrained_student_must_lose_nothing_to_sft_either():
    chosen = "student={model: Qwen/Qwen3-0.6B, revision: c1899de289a04d12100db370d81485cdf75e47ca}"
    assert baseline(load_recipe(TOY, [chosen]), BASE, "grpo") == "base"


def test_a_champion_that_the_run_goes_on_from_is_protected_though_it_was_built_here():
    champion = BASE.model_copy(update={"stage": "champion"})
    assert baseline(load_recipe(TOY, []), champion, "grpo") == "base"


def test_without_sft_the_student_is_protected():
    assert baseline(load_recipe(TOY, ["sft=off"]), BASE, "grpo") == "base"


def test_where_grpo_did_not_start_the_student_is_protected():
    assert baseline(load_recipe(TOY, []), BASE, "sft") == "base"
