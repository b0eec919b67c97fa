"""Law 3: windows are disjoint, and so are the questions; a space that is too small is refused."""

import random
from unicodedata import normalize

import pytest
import reasoning_gym
from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks import questions as asking
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.questions import questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import SeedWindows, Window

SMALL = EnvironmentSpec(
    name="reasoning_gym",
    settings={"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}},
)
"""Two terms of one digit: about two hundred questions in all."""


def windows(size: int = 60, evaluate: int = 60) -> SeedWindows:
    return SeedWindows(
        collect=Window(start=0, size=size),
        grpo=Window(start=10_000, size=size),
        evaluate=Window(start=20_000, size=evaluate),
    )


def test_why_item_numbers_must_not_reach_into_another_window():
    """Reasoning Gym's item i of seed s is item 0 of seed s + i: a dataset of a size is a window of seeds."""
    config = dict(min_terms=2, max_terms=3, min_digits=2, max_digits=2)
    tutorial = {entry["question"] for entry in reasoning_gym.create_dataset("chain_sum", seed=42, size=1000, **config)}
    held_out = [entry["question"] for entry in reasoning_gym.create_dataset("chain_sum", seed=999, size=50, **config)]
    assert sum(question in tutorial for question in held_out) == 43


def test_windows_that_overlap_are_refused_with_where_to_move_them():
    with pytest.raises(ValidationError, match=r"collect \(0 to 99\) and grpo \(from 99\) overlap; move grpo to 100"):
        SeedWindows(
            collect=Window(start=0, size=100),
            grpo=Window(start=99, size=1),
            evaluate=Window(start=500, size=1),
        )


@pytest.mark.parametrize("trial", range(50))
def test_windows_are_accepted_exactly_when_no_seed_is_in_two(trial: int):
    rng = random.Random(trial)
    three = [Window(start=rng.randrange(30), size=rng.randrange(1, 10)) for _ in range(3)]
    seeds = [seed for window in three for seed in window.seeds()]
    disjoint = len(seeds) == len(set(seeds))
    try:
        SeedWindows(collect=three[0], grpo=three[1], evaluate=three[2])
        accepted = True
    except ValidationError:
        accepted = False
    assert accepted == disjoint, f"trial {trial}: {three}"


def test_no_training_question_is_used_that_the_evaluation_asks(context: StageContext):
    counts = questions.body(context, SMALL, windows(200, 200), 40)
    evaluation_questions = [row["question"] for row in read_questions(context.out, "evaluate") if row["used"]]
    trained = {row["question"] for row in read_questions(context.out, "grpo") if row["used"]}
    assert len(evaluation_questions) == len(set(evaluation_questions)) == counts["evaluate"] == 40
    assert not trained & set(evaluation_questions)
    assert counts["dropped_from_grpo"] == 200 - counts["grpo"] > 0


def test_a_question_in_another_unicode_form_is_one_that_the_evaluation_asks(
    context: StageContext, monkeypatch: pytest.MonkeyPatch
):
    forms = ("NFC", "NFD", "NFC", "NFKD")
    texts = {s: normalize(forms[s // 10_000], f"Zähle bis {s % 10_000}!") for s in (*range(60), *range(10_000, 10_060))}
    texts |= {seed: normalize("NFD", f"Zähle bis {seed - 19_980}!") for seed in range(20_000, 20_060)}
    monkeypatch.setattr(asking, "ask", lambda *_: texts)
    counts = questions.body(context, SMALL, windows(), 20)
    left = {row["seed"] % 10_000 for row in read_questions(context.out, "grpo") if row["used"]}
    assert counts["dropped_from_grpo"] == 20
    assert left == {*range(20), *range(40, 60)}


def test_too_few_distinct_questions_for_the_evaluation_are_refused(context: StageContext):
    tiny = EnvironmentSpec(
        name="reasoning_gym", settings={"dataset": "coin_flip", "config": {"min_trials": 1, "max_trials": 1}}
    )
    with pytest.raises(Stop, match="problem space is too small"):
        questions.body(context, tiny, windows(), 60)


def test_a_space_that_the_evaluation_uses_up_is_refused(context: StageContext):
    with pytest.raises(Stop, match="of the 60 collect seeds repeat evaluation questions"):
        questions.body(context, SMALL, windows(60, 3000), 180)


def test_a_configuration_that_the_environment_refuses_is_refused_when_it_is_read():
    settings = {"dataset": "chain_sum", "config": {"min_terms": 4, "max_terms": 2}}
    with pytest.raises(ValidationError, match="max_terms must be >= min_terms"):
        EnvironmentSpec(name="reasoning_gym", settings=settings)
