"""The levels of Reasoning Gym's curricula, as rungs of a recipe."""

import json
from typing import Any

import pytest

from apprentice.flows.recipe.curriculum_levels import all_levels, datasets_with_levels, levels_by_label
from apprentice.flows.recipe.loading import load_recipe
from apprentice.tasks.reporting.errors import Stop
from tests.flows.commands import TOY


def recipe(curriculum: str, *more: str) -> Any:
    return load_recipe(TOY, [f"grpo.curriculum={curriculum}", *more])


def test_levels_are_those_of_a_datasets_own_curriculum_and_contain_those_before():
    levels = levels_by_label(["spell_backward", "chain_sum"], 3)
    assert [*levels] == [f"{name}-{level}" for name in ("spell-backward", "chain-sum") for level in (1, 2, 3)]
    words = [levels[f"spell-backward-{level}"] for level in (1, 2, 3)]
    assert [each["dataset"] for each in words] == ["spell_backward"] * 3
    assert [each["config"] for each in words] == [{"min_word_len": 3, "max_word_len": n} for n in (3, 5, 7)]
    sums = [levels[f"chain-sum-{level}"]["config"] for level in (1, 2, 3)]
    assert [each["max_terms"] for each in sums] == [2, 3, 4]


@pytest.mark.parametrize("name", ["knight_swap", "modulo_grid"])
def test_a_dataset_whose_curriculum_fails_is_refused_by_its_name(name: str):
    assert name in datasets_with_levels()
    with pytest.raises(ValueError, match=rf"^{name} fails at level [01] of its curriculum: \w+"):
        levels_by_label(["spell_backward", name], 4)
    with pytest.raises(Stop, match=f"grpo.curriculum: {name} fails"):
        recipe(f"[spell_backward, {name}]")


def test_a_curriculum_that_fails_later_has_the_levels_before():
    assert [*levels_by_label(["caesar_cipher"], 4)] == ["caesar-cipher-1", "caesar-cipher-2"]


def test_a_dataset_without_a_curriculum_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="chain_sun has no curriculum in Reasoning Gym; did you mean 'chain_sum'"):
        levels_by_label(["chain_sun", "spell_backward"], 4)


def test_one_line_of_a_recipe_makes_grpo_train_on_the_levels_of_its_dataset():
    trained: Any = recipe("reasoning_gym")
    [mixture] = trained.level_environments()
    own = trained.environment.settings["dataset"]
    assert {label: part.settings for label, part in mixture.mixed.items()} == levels_by_label([own], 4)
    assert (trained.server_of("multi"), trained.mixed_in("multi")) == (trained.server, ["reasoning_gym"])
    two = recipe("{levels: [chain_sum, gcd], most_levels: 2}").level_environments()[0]
    assert [*two.mixed] == ["chain-sum-1", "chain-sum-2", "gcd-1", "gcd-2"]
    parts = {"dataset": "composite", "dataset_specs": [{"name": "gcd"}, {"name": "lcm"}]}
    composite = recipe("reasoning_gym", f"environment.settings={json.dumps(parts)}")
    assert {part.settings["dataset"] for part in composite.level_environments()[0].mixed.values()} == {"gcd", "lcm"}


def test_a_mixture_of_datasets_is_trained_on_the_levels_of_each():
    parts = {name: {"name": "reasoning_gym", "settings": {"dataset": name}} for name in ("gcd", "lcm")}
    parts["again"] = parts["gcd"]
    mixed = recipe("reasoning_gym", f"environment={json.dumps({'name': 'multi', 'settings': {'parts': parts}})}")
    [levels] = mixed.level_environments()
    assert {label: part.settings for label, part in levels.mixed.items()} == levels_by_label(["gcd", "lcm"], 4)
    assert {part.name for part in levels.mixed.values()} == {"reasoning_gym"}
    parts["other"] = {"name": "echo", "settings": {"words": 1}}
    with pytest.raises(Stop, match="only reasoning_gym has levels"):
        recipe("reasoning_gym", f"environment={json.dumps({'name': 'multi', 'settings': {'parts': parts}})}")


def test_levels_are_reasoning_gyms_alone_and_not_beside_rungs():
    with pytest.raises(Stop, match="only reasoning_gym has levels"):
        recipe("reasoning_gym", "environment={name: echo}")
    with pytest.raises(Stop, match="both set levels"):
        recipe("reasoning_gym", 'grpo.auto_difficulty=[{"dataset": "chain_sum"}]')


@pytest.mark.long
def test_all_datasets_but_those_whose_curriculum_fails_have_levels():
    named = {settings["dataset"] for settings in all_levels(2).values()}
    assert named < set(datasets_with_levels())
    assert {"chain_sum", "spell_backward"} <= named
    assert not named & {"knight_swap", "modulo_grid"}
