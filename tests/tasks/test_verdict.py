"""What is compared, and what is not compared at all."""

import pytest

from apprentice.tasks.analysis.comparison import against_control, compare, compare_all, per_question, with_intervals
from apprentice.tasks.analysis.judgements import unclean
from tests.tasks.examined import episode, episodes


def test_every_comparison_is_corrected_for_all_of_them():
    held_out = {"base": episodes([0.0] * 40), "sft": episodes([1.0] * 20 + [0.0] * 20), "grpo": episodes([1.0] * 40)}
    guards = {
        "sums.base": episodes([1.0] * 10),
        "sums.grpo": episodes([0.0] * 10),
        "words.base": episodes([1.0] * 10),
        "words.grpo": episodes([1.0] * 10),
    }
    found = compare_all(held_out, guards)
    assert [(each["from"], each["to"], each["delta"]) for each in found["comparisons"]] == [
        ("base", "sft", 0.5),
        ("sft", "grpo", 0.5),
    ]
    assert [(each["guard"], each["delta"]) for each in found["guards"]] == [("sums", -1.0), ("words", 0.0)]
    assert found["guards"][0]["before"] == {"n": 10, "accuracy": 1.0, "ci": (pytest.approx(0.722, abs=1e-3), 1.0)}
    together = [*found["comparisons"], *found["guards"]]
    assert all(each["p_holm"] >= each["p_value"] for each in together)
    assert found["comparisons"][0]["p_holm"] == pytest.approx(4 * found["comparisons"][0]["p_value"])


def with_control(control: list[float], grpo: list[float]) -> list[dict]:
    held_out = {"base": [0.0] * 40, "sft": [1.0] * 10 + [0.0] * 30, "control": control, "grpo": grpo}
    return compare_all({name: episodes(rewards) for name, rewards in held_out.items()}, {})["comparisons"]


def test_a_gain_is_over_sft_at_its_best_where_that_was_measured():
    found = with_control(control=[1.0] * 20 + [0.0] * 20, grpo=[1.0] * 36 + [0.0] * 4)
    assert [(each["from"], each["to"], each["delta"]) for each in found] == [
        ("base", "sft", 0.25),
        ("sft", "control", 0.25),
        ("control", "grpo", 0.4),
        ("sft", "grpo", 0.65),
    ]
    assert found[2]["p_holm"] == pytest.approx(3 * found[2]["p_value"]), "the second smallest of four"
    assert against_control(found).startswith("SFT + GRPO beats SFT to its best on the same rollouts: +40.0 pp (+")


def test_a_gain_over_stopped_sft_alone_is_told_as_none():
    found = with_control(control=[1.0] * 38 + [0.0] * 2, grpo=[1.0] * 36 + [0.0] * 4)
    assert found[3]["ci"][0] > 0, "GRPO betters the SFT that it started from"
    assert against_control(found).startswith("SFT + GRPO does not beat SFT to its best on the same rollouts: -5.0 pp (")


def test_without_a_control_the_gain_is_over_the_sft_that_grpo_started_from():
    held_out = {"base": episodes([0.0] * 40), "sft": episodes([1.0] * 20 + [0.0] * 20), "grpo": episodes([1.0] * 40)}
    found = compare_all(held_out, {})["comparisons"]
    assert against_control(found).startswith("SFT + GRPO beats SFT alone on the same rollouts: +50.0 pp")


def test_models_that_were_asked_other_questions_are_not_compared():
    with pytest.raises(ValueError, match="not asked the same questions"):
        compare(episodes([1.0] * 3), episodes([1.0] * 4))


def sampled(rewards: list[list[float]]) -> list:
    samples = len(rewards[0])
    return [
        episode(question * samples + sample, reward, sample=sample, question=f"Question {question}?")
        for question, each in enumerate(rewards)
        for sample, reward in enumerate(each)
    ]


def test_several_samples_of_a_question_are_one_value_and_give_pass_at_k():
    records = sampled([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    assert per_question(records, "accuracy") == [0.5, 1.0, 0.0, 0.5]
    found = with_intervals(records)
    assert (found["n"], found["accuracy"], found["samples"]) == (4, 0.5, 2)
    assert [(row["k"], row["pass_at_k"]) for row in found["pass_at_k"]] == [(1, 0.5), (2, 0.75)]


def test_one_sample_of_a_question_needs_no_pass_at_k():
    assert "pass_at_k" not in with_intervals(episodes([1.0, 0.0]))


def test_the_refusal_says_what_was_seen_and_what_to_do():
    shared = {"shared_with_training": 3, "questions": 40, "share": 0.075, "limit": 0.0, "shared_seeds": 0}
    assert "3 of the 40 questions by text (7.5%; gate.max_overlap allows 0.0%)" in unclean(shared)
    assert "Move windows.evaluate" in unclean(shared)
