"""The windows of a round: a pure function of recipe and number, disjoint from those of all others."""

import itertools

import pytest
from pydantic import ValidationError

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.differences import level_of
from tests.flows.commands import TOY


def recipe(*overrides: str) -> Recipe:
    return load_recipe(TOY, list(overrides))


def in_round(number: int, *overrides: str) -> Recipe:
    return recipe(*overrides).round_of(RoundSpec(number=number))


def windows_of(each: Recipe) -> list[range]:
    regressions = [each.regression_window(index).seeds() for index in range(len(each.guards))]
    return [window.seeds() for _, window in each.seed_windows()] + regressions


@pytest.mark.parametrize(
    "moved",
    [[], ["windows.grpo.start=500"], ["windows.evaluate.start=1000", "seed=3"], ["windows.evaluate.size=1000000"]],
)
def test_no_seed_is_in_two_windows_of_any_two_rounds(moved: list[str]):
    fits = recipe(*moved).rounds_that_fit()
    numbers = [0, 1, 2, fits - 2, fits - 1] if fits > 5 else range(fits)
    rounds = [recipe(*moved) if number == 0 else in_round(number, *moved) for number in numbers]
    own = [window.seeds() for each in rounds for _, window in each.seed_windows()]
    regression, long_run = recipe(*moved).regression_window(0).seeds(), recipe(*moved).long_run_window().seeds()
    for one, other in itertools.combinations([*own, regression, long_run], 2):
        assert one.stop <= other.start or other.stop <= one.start, (one, other)


def test_rounds_of_another_recipe_seed_train_on_other_seeds():
    last = in_round(recipe().rounds_that_fit() - 1).seed_windows()
    other = in_round(1, "seed=1").seed_windows()
    assert last.collect.seeds().stop <= other.collect.start
    assert last.grpo.seeds().stop <= other.grpo.start


def test_a_window_in_the_way_ends_the_rounds_before_it_and_they_are_counted():
    tight = ["windows.collect.start=0", "windows.grpo.start=200"]
    assert recipe(*tight).rounds_that_fit() == 3
    assert in_round(2, *tight).seed_windows().collect.start == 120
    with pytest.raises(Stop, match="last 3 rounds"):
        in_round(3, *tight)


def test_the_first_round_is_the_recipe_itself_so_its_keys_are_those_of_a_plain_run():
    assert recipe().round_of(None) is not None
    assert recipe().round_of(None) == recipe()


def test_a_round_is_the_recipe_with_other_windows_and_a_stricter_gate_and_nothing_else():
    step, plain = in_round(4), recipe()
    assert step.gate.level == level_of(4) < 0.05
    same = {"windows": plain.windows, "gate": plain.gate, "round": None}
    assert step.model_copy(update=same) == plain


def test_a_rung_changes_the_settings_of_the_environment():
    levels = "[{dataset: spell_backward, config: {min_word_len: 3, max_word_len: 3}}, {dataset: spell_backward}]"
    given = recipe(f"improve.ladder={levels}")
    assert given.round_of(None).environment.settings == given.improve.ladder[0]
    assert given.round_of(RoundSpec(number=1), 1).environment.settings == given.improve.ladder[1]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sft=off", "grpo=off"], "both off"),
        (["teacher="], "nothing to learn from"),
        (["student.champion=true"], "continue from a trained model"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused_in_words(overrides: list[str], said: str):
    with pytest.raises(Stop, match=said):
        recipe(*overrides)


@pytest.mark.parametrize(
    "off", [["sft=off"], ["grpo=off"], ["grpo='off'"], ["teacher=", "collect.students=4"], ["teacher=", "sft=off"]]
)
def test_a_run_may_leave_a_training_or_the_teacher_out(off: list[str]):
    given = recipe(*off)
    assert Recipe.model_validate(given.as_parameters()) == given


def test_round_zero_has_no_plan():
    with pytest.raises(ValidationError):
        RoundSpec(number=0)
