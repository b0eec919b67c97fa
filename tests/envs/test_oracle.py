"""The oracle plays every Reasoning Gym dataset that names an answer, errs by near misses, and refuses the others."""

import random
import re

import numpy
import pytest
from reasoning_gym.factory import DATASETS

from apprentice.envs.reasoning_gym import datasets, env, scoring

PLAYED = sorted(DATASETS.keys() - datasets.WITHOUT_AN_ANSWER.keys() - {"composite"})
SLOW = {"arc_agi", "codeio", "figlet_font", "futoshiki", "group_anagrams", "knight_swap", "zebra_puzzles"}
"""Datasets that take seconds to load or to make a question."""
PARTS = [{"name": "gcd", "weight": 1}, {"name": "lcm", "weight": 1}]


def answer(settings: dict, question: str, error_rate: float, seed: int | None) -> str:
    tool, arguments = env.call(settings, [{"role": "user", "content": question}], error_rate, seed)
    assert tool == "answer"
    return arguments["answer"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in PLAYED]
)
def test_it_is_right_and_errs_where_it_shall(name: str):
    settings = {"dataset": name, "config": {}}
    env.check(settings)
    dataset, entry = datasets.entry(name, {}, 7)
    right = answer(settings, entry["question"], 0.0, 7)
    wrong = answer(settings, entry["question"], 0.999999, 7)
    assert scoring.score(dataset, entry, right)[0] == pytest.approx(1.0)
    assert scoring.score(dataset, entry, wrong)[0] < 1.0


@pytest.mark.parametrize("name", ["gcd", "number_sorting", "simple_geometry", "caesar_cipher"])
def test_its_mistakes_have_the_form_of_an_answer(name: str):
    _, entry = datasets.entry(name, {}, 7)
    wrong = answer({"dataset": name}, entry["question"], 0.999999, 7)
    right = str(entry["answer"])
    assert len(wrong) == len(right)
    assert sum(one != other for one, other in zip(wrong, right, strict=True)) == 1


def test_it_errs_on_the_share_that_it_is_told():
    entries = {seed: datasets.entry("gcd", {}, seed)[1] for seed in range(300)}
    answers = {seed: answer({"dataset": "gcd"}, each["question"], 0.1, seed) for seed, each in entries.items()}
    right = sum(answers[seed] == each["answer"] for seed, each in entries.items())
    assert 255 <= right <= 285


def test_it_plays_a_composite_dataset():
    settings = {"dataset": "composite", "dataset_specs": PARTS}
    env.check(settings)
    for seed in range(5):
        entry = datasets.entry("composite", {}, seed, PARTS)[1]
        assert answer(settings, entry["question"], 0.0, seed) == entry["answer"]


@pytest.mark.parametrize("name", sorted(datasets.WITHOUT_AN_ANSWER))
def test_a_dataset_that_names_no_answer_is_refused_in_a_line_that_says_what_to_do(name: str):
    for settings in ({"dataset": name}, {"dataset": "composite", "dataset_specs": [*PARTS, {"name": name}]}):
        with pytest.raises(ValueError, match=rf"{name} names no answer.*name a model: teacher\.model") as refused:
            env.check(settings)
        assert "\n" not in str(refused.value)


def test_another_question_than_the_seeds_is_refused():
    with pytest.raises(ValueError, match="versions differ"):
        env.known_answer({"dataset": "gcd"}, "What is the answer?", 7)
    with pytest.raises(ValueError, match="names no seed"):
        env.known_answer({"dataset": "gcd"}, datasets.entry("gcd", {}, 7)[1]["question"], None)


def test_a_near_miss_is_another_digit_or_letter():
    assert re.fullmatch(r"[0-46-9]", env.another("5", 3))
    assert re.fullmatch(r"[a-fh-z]", env.another("G", 3))


def test_a_question_draws_the_same_from_both_common_generators_and_leaves_them_as_they_were():
    random.seed(1)
    numpy.random.seed(1)
    drawn = []
    for _ in range(2):
        with datasets._seeded(7):
            drawn.append((random.random(), numpy.random.random()))
    assert drawn[0] == drawn[1]
    after = random.random(), numpy.random.random()
    random.seed(1)
    numpy.random.seed(1)
    assert after == (random.random(), numpy.random.random())
