"""Where a model is right and where not."""

import json

from apprentice.tasks.statistics.slices import slices
from tests.tasks.evaluations import episode

SIGNS = ["negative", "positive"] * 5


def with_slices(rewards: list[float]) -> list:
    return [
        episode(place, reward, traits=json.dumps({"sign": SIGNS[place], "terms": place, "constant": 1}))
        for place, reward in enumerate(rewards)
    ]


def test_a_model_that_cannot_do_negatives_shows_it():
    rows = slices({"base": with_slices([0.0] * 10), "grpo": with_slices([0.0, 1.0] * 5)})
    by_sign = {row["kind"]: row for row in rows if row["trait"] == "sign"}
    assert by_sign["negative"]["n"] == by_sign["positive"]["n"] == 5
    assert by_sign["negative"]["models"]["grpo"]["accuracy"] == 0.0
    assert by_sign["positive"]["models"]["grpo"]["accuracy"] == 1.0
    low, high = by_sign["positive"]["models"]["grpo"]["ci"]
    assert low < 0.6
    assert high == 1.0


def test_partial_credit_is_not_right_in_a_slice_either():
    rows = slices({"grpo": with_slices([0.9, 1.0] * 5)})
    by_sign = {row["kind"]: row["models"]["grpo"]["accuracy"] for row in rows if row["trait"] == "sign"}
    assert by_sign == {"negative": 0.0, "positive": 1.0}


def test_a_model_that_was_asked_fewer_questions_has_no_share_of_a_slice():
    rows = slices({"base": with_slices([0.0] * 4), "sft": with_slices([0.0] * 10), "grpo": with_slices([1.0] * 10)})
    assert {tuple(row["models"]) for row in rows} == {("sft", "grpo")}


def test_rare_kinds_are_put_together_and_a_trait_of_one_kind_is_none():
    rows = slices({"grpo": with_slices([1.0] * 10)})
    assert [row["kind"] for row in rows if row["trait"] == "terms"][-1] == "others"
    assert not [row for row in rows if row["trait"] == "constant"]


def test_samples_of_a_question_are_one_question_of_a_slice():
    records = [
        episode(n, float(n % 2), sample=n % 2, traits=json.dumps({"terms": n // 10}), turns=n % 3) for n in range(20)
    ]
    rows = slices({"grpo": records})
    assert [(row["trait"], row["n"]) for row in rows] == [("terms", 5), ("terms", 5)]
    assert rows[0]["models"]["grpo"]["accuracy"] == 0.5
