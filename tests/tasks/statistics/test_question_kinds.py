"""Kinds of questions: how they are called, what an evaluation says of them, what a training asked when."""

import json
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.question_kinds import (
    QUESTIONS,
    RATE,
    kind_of,
    kinds_of,
    kinds_over_time,
    right_and_wrong,
)
from tests.tasks.evaluations import episode

WORDS = EnvironmentSpec(name="reasoning_gym", settings={"dataset": "spell_backward", "config": {"max_word_len": 5}})


def question_rows(task: EnvironmentSpec, number: int) -> list[dict]:
    from apprentice.envs.reasoning_gym import datasets

    def text(seed: int) -> str:
        part: Any = task.make().part(seed).environment.settings
        return datasets.entry(part.dataset, part.config, seed, part.specs)[1]["question"]

    return [{"seed": seed, "question": text(seed)} for seed in range(number)]


def test_a_kind_is_called_as_in_the_tables_of_slices_and_a_part_by_its_label():
    assert kind_of({"word_len": 3, "answer length": 3}, ["word_len"]) == "word_len 3"
    assert kind_of({"environment": "words", "word_len": 3}, []) == "words"
    assert kind_of({"environment": "words", "word_len": 3}, ["environment", "word_len"]) == "words, word_len 3"
    assert kind_of({"environment": "sums"}, ["word_len"]) == "others"


def test_the_kinds_of_questions_are_read_from_the_environment():
    rows = question_rows(WORDS, 30)
    kinds = kinds_of(WORDS, rows, ["word_len"])
    assert kinds == {row["seed"]: f"word_len {len(row['question'].split()[-1])}" for row in rows}


def test_the_parts_of_a_mixture_are_kinds_by_themselves():
    parts = {label: {"name": "reasoning_gym", "settings": WORDS.settings} for label in ("one", "two")}
    mixture = EnvironmentSpec(name="multi", settings={"parts": parts})
    kinds = kinds_of(mixture, question_rows(mixture, 20), [])
    assert kinds == {seed: mixture.make().part(seed).label for seed in range(20)}


def test_a_trait_that_no_question_has_is_refused_with_those_that_there_are():
    with pytest.raises(Stop, match=r"has the tag 'length'(?s:.)*answer length, word_len"):
        kinds_of(WORDS, question_rows(WORDS, 5), ["length"])
    with pytest.raises(Stop, match=r"all questions are of one slice, others(?s:.)*answer length, word_len"):
        kinds_of(WORDS, question_rows(WORDS, 5), [])


def test_what_an_evaluation_had_right_and_wrong_counts_by_kind_and_what_the_environment_broke_does_not():
    short, long = json.dumps({"word_len": 3}), json.dumps({"word_len": 5})
    records = [episode(0, 1.0, traits=short), episode(1, 0.9, traits=short), episode(2, 0.0, traits=long)]
    records.append(episode(3, None, traits=long, broken="it failed"))
    assert right_and_wrong(records, ["word_len"]) == {"word_len 3": (1, 1), "word_len 5": (0, 1)}


def test_what_was_asked_when_is_read_from_the_log():
    log = [
        {"step": 1, "reward": 0.5, f"{QUESTIONS}b": 3.0, f"{RATE}b": 0.5, f"{QUESTIONS}a": 1.0, f"{RATE}a": 0.9},
        {"step": 2, "eval_reward": 0.5},
        {"step": 3, f"{QUESTIONS}b": 0.0, f"{RATE}b": 0.6, f"{QUESTIONS}a": 4.0, f"{RATE}a": 0.8},
    ]
    assert kinds_over_time(log) == {
        "a": {"asked": [(1, 0.25), (3, 1.0)], "rate": [(1, 0.9), (3, 0.8)]},
        "b": {"asked": [(1, 0.75), (3, 0.0)], "rate": [(1, 0.5), (3, 0.6)]},
    }
    assert kinds_over_time([{"step": 1, "reward": 0.5}]) == {}
