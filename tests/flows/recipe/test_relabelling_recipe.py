"""Whether a teacher is asked follows from the recipe, also where it judges rows; one that cannot be is refused."""

from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import TOY

ROWS, RELABEL = "collect.dataset=rows.jsonl", "collect.unverified=relabel"
NUMBER = ("environment={name: number}", "guards=[]")
ROUND = RoundSpec(number=1, asked=[], kept=[])


def toy(*overrides: str) -> Recipe:
    return load_recipe(TOY, list(overrides))


@pytest.mark.parametrize(
    ("overrides", "collects", "buys"),
    [
        ([], True, True),
        ([ROWS], False, False),
        ([ROWS, "collect.unverified=keep"], False, False),
        ([ROWS, RELABEL], False, True),
        ([RELABEL], True, True),
        ([ROWS, RELABEL, "sft=off"], False, False),
        (["teacher=", "collect.students=2"], False, False),
    ],
)
def test_a_teacher_is_asked_where_it_plays_or_judges_rows(overrides: list[str], collects: bool, buys: bool):
    recipe = toy(*overrides)
    assert (recipe.collects, recipe.buys) == (collects, buys)


def test_a_later_round_takes_no_rows_and_asks_nobody_about_them():
    recipe = toy(ROWS, RELABEL)
    assert not recipe.model_copy(update={"round": ROUND}).buys
    assert toy().model_copy(update={"round": ROUND}).buys


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["teacher=", ROWS], r"relabel asks a teacher; name one \(teacher.model\)"),
        ([ROWS, *NUMBER], "relabel has a teacher answer a question in one turn, and an episode of number"),
    ],
)
def test_a_recipe_whose_rows_no_teacher_can_judge_is_refused_with_the_remedy(overrides: list[str], says: str):
    with pytest.raises(Stop, match=says) as stop:
        toy(*overrides, RELABEL)
    assert "take drop or keep" in str(stop.value)
    for other in ("drop", "keep"):
        assert not toy(*overrides, f"collect.unverified={other}").buys


def test_a_mixture_with_a_part_of_one_turn_and_a_server_that_is_not_known_yet_are_judged():
    parts: dict[str, Any] = {"one": {"name": "echo"}, "many": {"name": "number"}}
    mixed = f"environment={{name: multi, settings: {{parts: {parts}}}}}"
    assert toy(ROWS, RELABEL, mixed, "guards=[]", "teacher={model: toy}").buys
    unknown = "environment={name: openenv}"
    assert toy(ROWS, RELABEL, unknown, "guards=[]", "server.url=http://127.0.0.1:9", "teacher={model: toy}").buys


def test_what_the_teacher_judges_by_is_in_no_key_that_exists():
    plain = toy().collect
    assert toy(ROWS, RELABEL).collect.by_teacher().in_key() == plain.by_teacher().in_key() == plain.in_key()
