"""What thoughts are worth: paired with no thought, with the tokens that they cost, and by a majority of samples."""

import json
from typing import Any

import pytest

from apprentice.tasks.analysis.curve_signals import signals_in
from apprentice.tasks.analysis.thought_worth import shown_rows, vote_row, worth_of_thoughts
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.settings.signals import RewardSignals
from tests.tasks.evaluations import episode, episodes


def thinking(rewards: list[float], tokens: int) -> list[EvaluatedEpisode]:
    found = episodes(rewards, completion_tokens=tokens)
    for each in found:
        each.messages[2][THOUGHT] = "1 + 1 = 2."
    return found


def answered(place: int, sample: int, answer: str, reward: float) -> EvaluatedEpisode:
    found = episode(place, reward, completion_tokens=10, question=f"Question {place - sample}?", sample=sample)
    found.messages[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"answer": answer})
    return found


def test_each_budget_is_paired_with_no_thought_and_has_its_tokens():
    played = {"0": episodes([0.0, 0.0, 0.0, 1.0], completion_tokens=20), "0.5": thinking([1.0, 0.0, 0.0, 1.0], 40)}
    found = worth_of_thoughts(played, thinking([1.0, 1.0, 1.0, 1.0], 60))
    assert [each["budget"] for each in found["budgets"]] == [0.0, 0.5, 1.0]
    assert [each["accuracy"] for each in found["budgets"]] == [0.25, 0.5, 1.0]
    assert [each["tokens"] for each in found["budgets"]] == [20.0, 40.0, 60.0]
    assert [each["thought"] for each in found["budgets"]] == [0.0, 1.0, 1.0]
    first, *others = [each["difference"] for each in found["budgets"]]
    assert first is None
    assert [(each["delta"], each["won"], each["lost"]) for each in others] == [(0.25, 1, 0), (0.75, 3, 0)]
    assert [row["to no thought"][:8] for row in shown_rows(found)] == ["–", "+25.0 pp", "+75.0 pp"]


def test_a_majority_of_samples_counts_with_the_tokens_of_all():
    records = [
        *(answered(n, n, answer, reward) for n, (answer, reward) in enumerate([("7", 1.0), ("8", 0.0), ("7", 1.0)])),
        *(answered(n, n - 3, answer, 0.0) for n, answer in enumerate(("1", "2", "2"), 3)),
    ]
    found = vote_row(records)
    assert (found["samples"], found["accuracy"], found["tokens"]) == (3, 0.5, 30.0)
    assert found["one"] == pytest.approx(1 / 3)
    assert shown_rows({"vote": found})[0]["budget of thought"] == "majority of 3 samples"


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ((("7", 1.0), ("7", 1.0), ("8", 0.0)), 1.0),
        ((("", 0.0), ("", 0.0), ("7", 1.0)), 1.0),  # no call is no answer
        ((("", 0.0), ("", 0.0), ("", 0.0)), 0.0),
    ],
)
def test_what_was_not_answered_has_no_vote(answers: Any, right: float):
    records = [answered(n, n, answer, reward) for n, (answer, reward) in enumerate(answers)]
    for record in records:
        if '""' in record.messages[2]["tool_calls"][0]["function"]["arguments"]:
            record.messages[2]["tool_calls"] = []
    assert vote_row(records)["accuracy"] == right


def test_arguments_in_another_order_and_other_calls_before_are_the_same_vote():
    records = [answered(n, n, "", reward) for n, reward in enumerate((0.0, 1.0, 1.0))]
    given = ('{"a": 1}', '{"a": 1, "b": 2}', '{"b": 2, "a": 1}')
    for record, arguments in zip(records, given, strict=True):
        (call,) = record.messages[2]["tool_calls"]
        record.messages[2]["tool_calls"] = [
            {"function": {"name": "look", "arguments": f'{{"at": {record.sample}}}'}},
            call,
        ]
        call["function"]["arguments"] = arguments
    assert vote_row(records)["accuracy"] == 1.0


def test_answers_that_stay_with_another_thought_are_counted_on_the_questions_that_were_asked_so():
    whole = [answered(n, 0, answer, 1.0) for n, answer in enumerate(("7", "8", "9", "1"))]
    swapped = [answered(n, 0, answer, reward) for n, (answer, reward) in enumerate([("7", 1.0), ("7", 0.0)])]
    found = worth_of_thoughts({"swapped": swapped}, whole)["swapped"]
    assert (found["n"], found["stays"], found["accuracy"]) == (2, 0.5, 0.5)
    (row,) = shown_rows({"swapped": found})
    assert row["to no thought"].endswith("of 2 answers stay the same")
    assert row["tokens an answer"] == "10.0"
    (older,) = shown_rows({"swapped": {name: value for name, value in found.items() if name != "tokens"}})
    assert older["tokens an answer"] == "–"
    with pytest.raises(ValueError, match="other questions"):
        worth_of_thoughts({"swapped": swapped[::-1]}, whole)


def test_without_such_evaluations_there_is_nothing_to_show():
    assert worth_of_thoughts({}, episodes([1.0])) == {}
    assert shown_rows({}) == []


# --- signals --------------------------------------------------------------------------------------------------------


def course(tokens: tuple[float, float], reward: tuple[float, float], cut_off: float = 0.0) -> list[dict[str, Any]]:
    """A log that is at the first values for three entries, and then at the last ones."""
    return [
        {"loss": 0.1, "step": n, "reward": reward[n > 3], "thought/tokens": tokens[n > 3], "thought/cut_off": cut_off}
        for n in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("log", "kinds"),
    [
        (course((40, 60), (0.5, 0.5)), {"longer"}),
        (course((40, 60), (0.5, 0.7)), set()),
        (course((40, 50), (0.5, 0.5)), set()),
        (course((40, 10), (0.5, 0.7)), {"stopped"}),
        (course((40, 10), (0.5, 0.4)), set()),
        (course((40, 40), (0.5, 0.7), cut_off=0.3), {"cut_off"}),
        (course((40, 40), (0.5, 0.7), cut_off=0.2), set()),
    ],
)
def test_the_course_of_thoughts_is_signalled(log: list[dict[str, Any]], kinds: set[str]):
    assert signals_in(log, RewardSignals(window=3)).keys() == kinds


def test_thoughts_that_stop_are_said_to_be_often_the_better_policy():
    found = signals_in(course((40, 10), (0.5, 0.7)), RewardSignals(window=3))["stopped"]
    assert "Often the better policy" in found.advice
    assert "40 tokens, now 10" in found.found


def test_the_signals_of_thoughts_change_no_key():
    assert not {"cut_off", "longer", "stopped", "most_cut_off"} & RewardSignals().in_key().keys()
    assert RewardSignals(cut_off="stop").in_key()["cut_off"] == "stop"
