"""A log of `apprentice serve` is read as conversations: each once, its longest row."""

from typing import Any

from apprentice.tasks.formats.served_log import HEADER, conversations, joined

HEAD = ("log, line 1", {HEADER: "requests", "fields": {}})


def row(*texts: str) -> tuple[str, Any]:
    roles = ("user", "assistant")
    return "log", {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], "key": "k"}


def test_of_a_conversation_that_goes_on_only_the_longest_row_counts():
    one, two, three = row("a", "b"), row("a", "b", "c", "d"), row("a", "x")
    assert list(conversations([HEAD, one, two, three])) == [two, three]


def test_rows_of_others_pass_as_they_are_also_those_that_begin_alike():
    rows = [row("a", "b"), row("a", "b", "c", "d")]
    assert list(conversations(rows)) == rows
    assert list(conversations([])) == []


def test_the_parts_of_a_streamed_call_become_one_call():
    def part(index: int, **function: str) -> dict[str, Any]:
        call = {"index": index, "function": function} | ({"id": "7"} if "name" in function else {})
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    text = {"choices": [{"delta": {"content": "So: "}}]}
    thought = [{"choices": [{"delta": {name: "I "}}]} for name in ("reasoning_content", "reasoning")]
    assert joined([*thought, text]) == {"role": "assistant", "content": "So: ", "reasoning_content": "I I "}
    message = joined([text, part(0, name="echo", arguments='{"te'), part(0, arguments='xt": "a"}'), {"usage": {}}])
    call = {"id": "7", "type": "function", "function": {"name": "echo", "arguments": '{"text": "a"}'}}
    assert message == {"role": "assistant", "content": "So: ", "tool_calls": [call]}
