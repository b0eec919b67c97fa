"""Which model's skills the guard rails protect before there is a champion."""

from apprentice.flows.examination import protected
from apprentice.flows.recipe.loading import load_recipe
from tests.flows.commands import TOY


def test_a_student_with_random_weights_has_skills_to_lose_only_after_sft():
    assert protected(load_recipe(TOY, [])) == "sft"


def test_a_pretrained_student_must_lose_nothing_to_sft_either():
    chosen = "student={model: Qwen/Qwen3-0.6B, revision: c1899de289a04d12100db370d81485cdf75e47ca}"
    assert protected(load_recipe(TOY, [chosen])) == "base"
