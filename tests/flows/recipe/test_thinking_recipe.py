"""How a recipe says that its student thinks, and who is told."""

from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.training_checks import check_thinking
from apprentice.tasks.episodes.thinking import think
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import ThoughtsSpec
from apprentice.tasks.settings.spec import StudentSpec, ThinkingSpec
from apprentice.tasks.training.template import check_template
from tests.conftest import TASKS
from tests.students_page import templates, toy_tokenizer

GIVEN: dict[str, Any] = {
    "name": "toy",
    "environment": {"name": "echo"},
    "teacher": {"scripted_error_rate": 0.1},
    "windows": {purpose: {"size": 9} for purpose in ("collect", "grpo", "evaluate")},
}


def recipe(thinking: Any = None, **given: Any) -> Recipe:
    student = {"build": {}} | ({} if thinking is None else {"thinking": thinking})
    return Recipe.model_validate(GIVEN | {"student": student} | given)


@pytest.mark.parametrize("off", ["off", False])
def test_off_is_as_if_nothing_were_said(off: Any):
    assert recipe(off) == recipe()
    assert recipe(off).student.in_key() == StudentSpec.model_validate({"build": {}}).in_key()
    assert "thinking" not in recipe(off).student.in_key()


@pytest.mark.parametrize("mode", ["text", "native"])
def test_a_word_is_short_for_the_mode(mode: str):
    assert recipe(mode) == recipe({"mode": mode})
    assert recipe(mode).student.in_key()["thinking"]["mode"] == mode


def test_another_word_is_refused():
    with pytest.raises(ValidationError, match="Input should be 'text' or 'native'"):
        recipe("loud")


def test_the_teacher_is_given_the_students_budget_and_instruction():
    found = recipe({"mode": "text", "max_tokens": 30, "instruction": "Add."})
    assert found.teacher is not None
    assert found.teacher.thoughts == ThoughtsSpec(max_tokens=30, instruction="Add.")
    assert Recipe.model_validate(found.as_parameters()) == found, "a deployment has the same recipe"


def test_rows_that_exist_keep_their_thoughts_for_a_student_that_thinks_alone(tmp_path: Any):
    collect = {"dataset": {"path": str(tmp_path)}}
    kept = [recipe(mode, collect=collect).collect.dataset for mode in ("text", "off")]
    assert [each and each.thoughts for each in kept] == [True, False]


def test_thoughts_that_nobody_learns_are_refused():
    with pytest.raises(ValidationError, match=r"teacher\.thoughts needs a student that thinks"):
        recipe(teacher=GIVEN["teacher"] | {"thoughts": {"shortest_of": 2}})


def test_a_template_without_a_block_is_refused_with_a_way_out():
    tokenizer = think(prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"])), ThinkingSpec(mode="native"))
    with pytest.raises(Stop, match=r"student\.thinking: native needs.*\n→ Set student\.thinking: off, or text"):
        check_template("toy", tokenizer, TASKS["chain_sum"].make())


def test_a_model_to_continue_from_thinks_as_the_recipe_says():
    plain = prepare_tokenizer(toy_tokenizer(templates()["qwen2_5"]))
    check_thinking(recipe().student, plain, "its champion")
    with pytest.raises(Stop, match=r"its champion was trained with student\.thinking: off"):
        check_thinking(recipe("text").student, plain, "its champion")
    thinks = think(plain, ThinkingSpec(mode="text"))
    check_thinking(recipe("text").student, thinks, "its champion")
    with pytest.raises(Stop, match=r'Set student\.thinking to \{"mode": "text"'):
        check_thinking(recipe().student, thinks, "its champion")
