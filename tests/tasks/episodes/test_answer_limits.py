"""Answers that are larger than an answer may be: which limit they exceed, and what is kept of them."""

from typing import Any

import pytest

from apprentice.tasks.episodes.answer_limits import MOST_BYTES, beyond_limits, cut


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        ({"content": "x" * 600}, "x" * 500 + " …"),
        (
            {"content": None, "tool_calls": [{"function": {"name": "guess", "arguments": '{"n": 1}'}}]},
            'guess({"n": 1} …',
        ),
        ({"content": "a", "tool_calls": [{"function": {"name": "b", "arguments": {"c": 1}}}] * 2}, "a b(… b(… …"),
        ({"content": "", "tool_calls": None}, " …"),
        ({"tool_calls": [{"function": {"name": "n" * 501, "arguments": "y"}}]}, "n" * 500 + " …"),
    ],
)
def test_of_an_answer_beyond_a_limit_the_beginning_is_kept_as_text(message: dict[str, Any], begins: str):
    assert cut(message) == {"role": "assistant", "content": begins}


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ({"content": "x" * MOST_BYTES}, None),
        ({"content": "x" * (MOST_BYTES + 1)}, "an answer of more than 128 KiB"),
        ({"content": "é" * (MOST_BYTES // 2)}, None),
        ({"content": "é" * (MOST_BYTES // 2) + "x"}, "an answer of more than 128 KiB"),
        ({"tool_calls": [{"function": {"name": "x", "arguments": "y" * (MOST_BYTES - 1)}}]}, None),
        (
            {"tool_calls": [{"function": {"name": "x", "arguments": "y" * MOST_BYTES}}]},
            "an answer of more than 128 KiB",
        ),
    ],
)
def test_an_answer_may_have_128_kib_of_everything_together(message: dict[str, Any], limit: str | None):
    assert beyond_limits(message) == limit
