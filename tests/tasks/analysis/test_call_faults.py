"""A report shows what is wrong with a call, also where the eye sees nothing wrong."""

from typing import Any

import pytest

from apprentice.tasks.analysis.kinds import faults_of_calls
from apprentice.tasks.reporting.safe_text import code, fenced, one_line, visible


def written(call: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "<tool_call>"}, {"role": "assistant", "content": f"<tool_call>{call}"}]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ('{"name": "answer", "arguments": {"answer": "4\x072"}}</tool_call>', "the invisible \\x07"),
        ('{"name": "answer", "arguments": {"answer": "42"}\u200b}</tool_call>', "the invisible \\u200b"),
        ('{"name": "answer", "arguments": {"answer": 42,}}</tool_call>', "character"),
        ('{"name": "answer"', "breaks off before </tool_call>"),
        ('{"name": "answer", "arguments": </tool_call>', "at its end"),
        ('{"answer": "42"}</tool_call>', "not an object with name and arguments"),
        ("[" * 100_000 + "</tool_call>", "nested too deeply"),
    ],
)
def test_a_written_call_that_does_not_parse_is_explained(call: str, fault: str):
    (told,) = faults_of_calls(written(call))
    assert fault in told


def test_a_call_whose_arguments_are_no_json_is_explained():
    call = {"function": {"name": "answer", "arguments": '{"answer": "4\x002"}'}}
    assert "the invisible \\x00" in faults_of_calls([{"role": "assistant", "tool_calls": [call]}])[0]


def test_nothing_is_wrong_with_a_valid_call():
    call = {"function": {"name": "answer", "arguments": '{"answer": "42"}'}}
    assert faults_of_calls([{"role": "assistant", "content": "So:", "tool_calls": [call]}]) == []


def test_what_is_invisible_is_written_out_on_pages():
    text = "4\x1b[2J2\u202e é 漢\tx\ny"
    assert visible(text) == "4\\x1b[2J2\\u202e é 漢\\tx\ny"
    assert one_line(text) == "4\\x1b[2J2\\u202e é 漢 x y"
    assert "\x1b" not in code(text) + fenced(text)
