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


def handed_in(place: int, sample: int, value: Any, reward: float) -> EvaluatedEpisode:
    """An answer of any type, in a call whose arguments hold it."""
    found = answered(place, sample, "", reward)
    found.messages[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"answer": value})
    return found


ALIKE = {
    "a full stop and a space": ("85", "85.", " 85"),
    "a number as number and as text": (85, 85.0, "85.0"),
    "a sign that says nothing": ("+3", 3, "3"),
    "a zero with a sign": ("-0", 0, "-0.00"),
    "decimals": (0.50, "0.5", "0.500."),
    "a small number": (0.00001, "0.00001", "0.000010"),
    "case": ("Cat", "cat", "CAT"),
    "spaces and lines": ("a  cat", "a cat\n", "a\tcat"),
    "letters in another Unicode form": ("caf\u00e9", "cafe\u0301", "CAFE\u0301"),
    "a sentence": ("It is 5.", "it is 5", "It  is 5. "),
    "values within others": ([{"a": 1, "b": ["X."]}], [{"b": ["x"], "a": "1"}], [{"a": 1.0, "b": [" x"]}]),
}


@pytest.mark.parametrize("alike", ALIKE.values(), ids=ALIKE)
def test_spellings_of_one_answer_are_one_vote(alike: tuple[Any, ...]):
    records = [handed_in(n, n, answer, 1.0) for n, answer in enumerate(alike)]
    others = [handed_in(n, n, "12", 0.0) for n in (3, 4)]
    assert vote_row([*others, *records])["accuracy"] == 1.0
    whole, swapped = (handed_in(0, 0, answer, 1.0) for answer in alike[:2])
    assert worth_of_thoughts({"swapped": [swapped]}, [whole])["swapped"]["stays"] == 1.0


OTHERS = {
    "codes with zeros ahead": ("007", "07", "7"),
    "signs": ("3", "-3", "- 3"),
    "long numbers": (10**40, 10**40 + 1, str(10**40 + 2)),
    "truth values and numbers": (True, 1, None),
    "two full stops": ("a", "a..", "a..."),
    "an order": (["a", "b"], ["b", "a"], "a b"),
    "versions": ("1.2.0", "1.2", "1.2.0.0"),
    "a full stop alone": (".", "", "..."),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_answers_that_differ_are_no_majority(others: tuple[Any, ...]):
    records = [handed_in(n, n, answer, 0.0) for n, answer in enumerate(others)]
    right = [handed_in(n, n, "forty-two", 1.0) for n in (3, 4)]
    assert vote_row([*records, *right])["accuracy"] == 1.0


def test_a_majority_counts_as_its_answer_that_was_given_first():
    spelled = [handed_in(n, n, *given) for n, given in enumerate([("Cat", 0.0), ("cat", 1.0), ("dog", 0.0)])]
    assert vote_row(spelled)["accuracy"] == 0.0


def test_texts_that_end_an_episode_are_one_vote_in_any_spelling():
    def say(n: int, text: str, reward: float) -> EvaluatedEpisode:
        messages = [*answered(n, n, "", reward).messages[:2], {"role": "assistant", "content": text}]
        return episode(n, reward, messages=messages, question="Question 0?", sample=n)

    given = [("It is 12.", 0.0), ("It is 12.", 0.0), ("It is 85", 1.0), ("it is 85.", 1.0), ("It  is 85.", 1.0)]
    assert vote_row([say(n, *each) for n, each in enumerate(given)])["accuracy"] == 1.0


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
