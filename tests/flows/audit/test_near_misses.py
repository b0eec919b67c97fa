"""An order desk whose grader takes too much for right, or whose rewards make breaking off worth while."""

import re
from collections.abc import Callable

import pytest

from apprentice.flows.audit.near_misses import near_miss, shown_like, stopping
from tests.flows.audit.conftest import Served

Games = Callable[[str], Served]


@pytest.mark.long
def test_a_reward_for_looking_that_a_wrong_refund_loses_is_told_with_its_figures(served: Games):
    found = served("order_desk").finding("pays for looking", stopping)
    assert (found.status, found.severity) == ("failed", "error")
    assert re.fullmatch(
        r"stopping after 1 call earns 0\.2 on average, a wrong last call 0, the right one 1, over \d+ episodes: "
        "who is right in less than 20% of the last calls earns more by breaking off",
        found.found,
    )
    assert "GRPO learns to break off" in found.effect
    assert "no reward for looking" in found.remedy
    stopped, missed = found.evidence
    assert [tool for tool, _ in stopped.calls] == ["find"]
    assert str(stopped).endswith("no further call, reward 0.2")
    assert [tool for tool, _ in missed.calls] == ["find", "orders", "refund"]
    assert missed.saw.endswith("reward 0")


@pytest.mark.parametrize(
    ("fault", "severity", "said"),
    [
        ("any order", "error", "another line that is shown counts as right for `order, amount` of refund"),
        pytest.param(
            *("any order at this price", "error", "such value that is shown counts as right for `order` of refund"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("the first order", "error", "the first such value that is shown counts as right for `order` of refund"),
            marks=pytest.mark.long,
        ),
        (
            "an order among others",
            "error",
            "the right value between two wrong ones counts as right for `order` of refund",
        ),
        ("any amount", "warning", "any value counts as right for `amount` of refund, on "),
    ],
)
def test_a_grader_that_takes_a_value_of_the_replies_for_right_is_found(
    served: Games, fault: str, severity: str, said: str
):
    found = served("order_desk").finding(fault, near_miss)
    assert (found.status, found.severity) == ("failed", severity), found
    assert said in found.found
    wrong, right = found.evidence
    assert wrong.calls[:-1] == right.calls[:-1]
    assert wrong.calls[-1] != right.calls[-1]
    assert wrong.saw.endswith("reward 1")


@pytest.mark.long
def test_a_sound_desk_has_no_finding(served: Games):
    assert served("order_desk").failed("", seeds=24, seconds=2.0) == []


@pytest.mark.parametrize("check", [near_miss, stopping])
def test_a_sound_desk_passes_both_checks(served: Games, check):
    assert served("order_desk").finding("", check).status == "passed"


def test_a_comment_that_may_be_anything_is_no_finding(served: Games):
    assert "any text counts for `comment` of refund; " in served("order_desk").finding("", near_miss).found


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("O-17", "O-17: a lamp. O-1, O-244 (C-9). O-1", ["O-1", "O-244"]),
        ("a3f9", "a3f9, b7c1 and c12", ["b7c1"]),
        (5, "5 lamps for 12.50, 3 of O-44, and 70.", [3, 44, 70]),
        (2.5, "2.5 or 3.5 or 4", [3.5, 4.0]),
        ("Ada", "Ada met Ben and Cleo", ["Ben", "Cleo"]),
        ("Zoe", "Ada met Ben", []),
        ("two words", "two words and more", []),
    ],
)
def test_near_misses_are_of_the_form_of_the_right_value(value: object, text: str, shown: list[object]):
    assert shown_like(value, text) == shown


def test_a_stop_without_partial_credit_counts_as_the_lowest_reward_as_in_grpo(served: Games):
    """Its reward of 0 would be better than the -1 of a wrong code."""
    found = served("vault").finding("", stopping)
    assert found.status == "passed"
    assert found.found.startswith("stopping after 0 calls earns -1 on average, a wrong last call -1, the right one 1")


def test_partial_credit_before_a_penalty_is_worth_a_stop(served: Games):
    found = served("vault").finding("pays for looking", stopping)
    assert (found.status, found.severity) == ("failed", "error")
    assert "stopping after 1 call earns 0.1 on average, a wrong last call -1" in found.found
    assert "less than 55% of the last calls" in found.found
