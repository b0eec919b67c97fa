"""Which of a run's models was trained last is known by its name, in whatever order they come."""

from itertools import permutations
from typing import Any

import pytest
from pydantic import BaseModel

from apprentice.tasks.judgement.run_models import Models, evaluations_of


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (["base"], "base"),
        (["base", "sft"], "sft"),
        (["base", "grpo"], "grpo"),
        (["base", "sft", "grpo"], "grpo"),
        (["base", "sft", "control", "grpo"], "grpo"),
        (["base", "sft", "control"], "sft"),
        (["base", "sft", "champion"], "sft"),
        (["champion"], "champion"),
        (["https://host/v1#model"], "https://host/v1#model"),
    ],
)
def test_the_last_model_is_the_same_in_every_order(names: list[str], last: str):
    for order in permutations(names):
        models = Models({name: name.upper() for name in order})
        assert (models.last_name, models.last) == (last, last.upper())
        assert list(models) == list(order)


def test_a_model_that_was_left_out_is_none():
    assert (Models({"base": 1}).supervised, Models({"base": 1}).control) == (None, None)
    models = Models({"base": 1, "sft": 2, "control": 3})
    assert (models.base, models.supervised, models.control) == (1, 2, 3)


def test_of_a_verdicts_inputs_those_are_its_models_that_were_evaluated_on_the_held_out_questions():
    inputs: dict[str, Any] = {"trained": 0, "evaluations.sft": 1, "guards.sums.sft": 2, "evaluations.base": 3}
    assert evaluations_of(inputs) == {"sft": 1, "base": 3}
    assert evaluations_of({"rollouts": 0}) == {}


def test_a_field_of_models_reads_each_of_them_and_is_written_as_a_mapping():
    class Rated(BaseModel):
        models: Models[float]

    rated = Rated.model_validate({"models": {"sft": "0.5", "base": 0}})
    assert isinstance(rated.models, Models)
    assert (rated.models.last, rated.models.base) == (0.5, 0.0)
    assert rated.model_dump() == {"models": {"sft": 0.5, "base": 0.0}}
