"""A task is too easy, too hard or right by the limits of GRPO's curves, and of several the one nearest to half wins."""

from typing import Any

import pytest

from apprentice.tasks.analysis.diagnose import RULES
from apprentice.tasks.analysis.difficulty import (
    advice_on_groups,
    assessment,
    dead_share,
    difficulty,
    groups_that_differ,
    label_differences,
    nearest_to_half,
    rows_of,
)
from apprentice.tasks.artifacts.types import Evaluation
from apprentice.tasks.statistics.intervals import wilson
from tests.tasks.evaluations import episode


def played(right: int, n: int = 48, valid: float = 1.0, score: float | None = None) -> Evaluation:
    rates: dict[str, Any] = {
        "accuracy": right / n,
        "format_compliance": valid,
        "mean_score": right / n if score is None else score,
    }
    about: dict[str, Any] = {"repository": "local/toy-evaluation", "revision": "a" * 40, "key": "k" * 20}
    return Evaluation(**about, model="sft", protocol="parity", n=n, cost_usd=0.0, **rates)


@pytest.mark.parametrize(
    ("right", "reading"),
    [
        (0, "too hard"),
        (20, "too hard"),
        (21, "right"),
        (50, "right"),
        (89, "right"),
        (90, "too easy"),
        (100, "too easy"),
    ],
)
def test_a_task_is_read_by_the_limits_of_grpos_curves(right: int, reading: str):
    assert (RULES.high, RULES.low) == (0.9, 0.2)
    assert difficulty(played(right, n=100)).reading == reading


def test_the_limits_are_the_recipes():
    assert difficulty(played(24)).reading == "right"
    assert difficulty(played(24), RULES.model_copy(update={"high": 0.4})).reading == "too easy"


def test_the_interval_is_wilsons_and_says_what_so_few_questions_leave_open():
    found = difficulty(played(12))
    assert found.ci == wilson(12, 48)
    assert (found.reading, found.not_ruled_out) == ("right", ["too hard"])
    assert "25.0% (14.9% to 38.8%) of 48 questions" in assessment(found)
    assert 'the interval does not rule out "too hard"' in assessment(found)
    assert difficulty(played(24)).not_ruled_out == []
    assert difficulty(played(1, n=2)).not_ruled_out == ["too hard", "too easy"]


def test_partial_credit_does_not_make_a_task_easier():
    assert difficulty(played(0, score=0.6)).reading == "too hard"


def test_what_to_do_follows_from_what_is_missing():
    assert "Make the task harder" in assessment(difficulty(played(47)))
    assert "Train SFT longer, make the task easier" in assessment(difficulty(played(2)))
    assert "the model lacks the answer's form" in assessment(difficulty(played(2, valid=0.1)))


def test_groups_that_are_too_small_for_the_rate_are_told_with_what_larger_ones_would_do():
    """Two completions are equal with 0.85² + 0.15²."""
    assert dead_share(0.85, 2) == pytest.approx(0.745)
    found = advice_on_groups(difficulty(played(85, n=100)), 2, "score")
    assert "at least 74% of the groups of 2" in found
    assert "(52% of 4, 27% of 8)" in found
    assert advice_on_groups(difficulty(played(85, n=100)), 8, "score") == ""


def test_nothing_is_said_of_groups_where_partial_credit_tells_wrong_answers_apart():
    found = difficulty(played(85, n=100, score=0.9))
    assert advice_on_groups(found, 2, "score") == ""
    assert advice_on_groups(found, 2, "exact") != ""


@pytest.mark.parametrize(
    ("accuracies", "place"),
    [
        ([0.95, 0.6, 0.1], 1),
        ([0.3, 0.1], 0),
        ([0.99, 0.8], 1),
        ([0.0, 0.0, 0.0], 0),
        ([1.0, 1.0, 1.0], 2),
        ([0.5], 0),
        ([0.1, 0.55, 0.45], 1),
    ],
)
def test_the_task_nearest_to_half_is_chosen(accuracies: list[float], place: int):
    """Of equals: the easiest where nothing is right, the hardest where everything is."""
    assert nearest_to_half(accuracies) == place


@pytest.mark.parametrize(
    ("rewards", "exact", "differ"),
    [
        ([[0.0, 0.0], [1.0, 1.0]], True, 0),
        ([[0.0, 1.0], [1.0, 1.0]], True, 1),
        ([[0.2, 0.4], [0.0, 0.0]], True, 0),
        ([[0.2, 0.4], [0.0, 0.0]], False, 1),
    ],
)
def test_a_group_differs_by_what_grpo_is_rewarded_for(rewards: list[list[float]], exact: bool, differ: int):
    answers = [
        episode(2 * question + sample, reward, sample=sample)
        for question, group in enumerate(rewards)
        for sample, reward in enumerate(group)
    ]
    assert groups_that_differ(answers, exact) == (differ, len(rewards))


def test_groups_that_differ_in_one_of_several_rewards_are_told_apart():
    answers = [episode(n, 0.0, sample=n, scores=f'{{"greens": {n}}}') for n in (0, 1)]
    assert groups_that_differ(answers, exact=False) == (1, 1)


def test_rungs_are_called_by_what_tells_them_apart():
    levels = [{"dataset": "words", "config": {"least": 3, "most": most}} for most in (4, 5)]
    assert label_differences(levels) == ["most 4", "most 5"]
    assert label_differences([*levels, {"dataset": "sums"}])[2] == "dataset sums"
    assert label_differences([{"dataset": "words"}, {"dataset": "words", "config": {"most": 9}}]) == [
        "by default",
        "most 9",
    ]
    assert label_differences(levels[:1]) == ["dataset words, least 3, most 4"]


def test_only_of_several_tasks_a_table_marks_the_chosen_one():
    one = {"called": "most 4", **difficulty(played(24))._asdict()}
    assert "rung" not in rows_of({"rungs": [one], "chosen": 0})[0]
    first, second = rows_of({"rungs": [one, one | {"called": "most 5"}], "chosen": 1})
    assert (first["rung"], second["rung"], second["settings"]) == ("1", "→ 2", "most 5")
