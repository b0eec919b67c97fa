"""An environment with a list of tasks has as many questions as rows, and windows that count rows."""

from typing import Any

import pytest

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.settings.spec import EvaluateSpec


def recipe(sizes: tuple[int, int, int], seed: int = 0, **environment: Any) -> Recipe:
    purposes = zip(("collect", "grpo", "evaluate"), sizes, strict=True)
    return Recipe.model_validate(
        {
            "name": "few",
            "seed": seed,
            "environment": environment,
            "windows": {purpose: {"size": size} for purpose, size in purposes},
            "student": {"build": {}},
            "teacher": {"model": "any"},
        }
    )


def rows(number: int) -> list[dict[str, Any]]:
    return [{"task_id": str(place)} for place in range(number)]


@pytest.mark.parametrize("seed", [0, 1])
def test_where_the_rows_suffice_each_window_has_rows_of_its_own(seed: int):
    made = recipe((5, 3, 2), seed, tasks=rows(10))
    windows = made.seed_windows()
    assert [[*window.seeds()] for _, window in windows] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
    assert not made.environment.repeats(seed for _, window in windows for seed in window.seeds())


@pytest.mark.parametrize("environment", [{"tasks": rows(9)}, {"one_task": True}])
def test_where_they_do_not_all_windows_are_tries_of_the_same(environment: dict[str, Any]):
    made = recipe((5, 3, 2), **environment)
    windows = made.seed_windows()
    assert windows == recipe((5, 3, 2), name="echo").seed_windows(), "each try has a seed of its own"
    assert made.environment.repeats(seed for _, window in windows for seed in window.seeds())


def test_other_environments_have_as_many_questions_as_seeds():
    assert recipe((5, 3, 2), name="echo").environment.questions is None


@pytest.mark.parametrize(("questions", "decoding"), [(None, "greedy"), (8, "greedy"), (7, "sampled"), (1, "sampled")])
def test_an_evaluation_that_asks_a_question_repeatedly_samples(questions: int | None, decoding: str):
    assert EvaluateSpec(questions=8).sampled_where_repeated(questions).decoding == decoding


def test_settings_may_stand_beside_the_environments_name():
    beside, within = recipe((1, 1, 1), name="echo", words=3), recipe((1, 1, 1), name="echo", settings={"words": 3})
    assert beside == within
