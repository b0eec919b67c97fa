"""What is said otherwise after a refusal, how an answer is read, and where the key comes from."""

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.blocks.system import Secret

from apprentice.tasks.endpoints import dialect
from apprentice.tasks.endpoints.dialect import Completion, Dialect, once_each, read_key
from apprentice.tasks.endpoints.refusals import RefusedRequest
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "asked"}, {"role": "assistant", "thought": 1, "mood": 2}]
BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 9, "temperature": 1.0, "tool_choice": "required", "seed": 3}
STREAMED = {"stream": True, "stream_options": {}}


def refused(text: str, param: str = "") -> RefusedRequest:
    return RefusedRequest(400, {"error": {"message": text, "param": param}}, {}, 120.0)


def left(*names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in (BODY | more).items() if name not in names}


@pytest.mark.parametrize(
    ("text", "param", "body", "own", "now"),
    [
        ("max_tokens is not supported", "", BODY, (), left("max_tokens", max_completion_tokens=9)),
        ("use max_completion_tokens", "max_tokens", BODY, (), left("max_tokens", max_completion_tokens=9)),
        ("max_tokens is too large", "", BODY, (), None),
        ("unsupported: temperature", "", BODY, (), left("temperature")),
        ("unsupported: temperature", "", BODY, ("temperature",), None),
        ("unsupported: a.temperature", "", BODY, (), None),
        ("unsupported: temperatures", "", BODY, (), None),
        ("seed, temperature", "", BODY, (), left("seed")),
        ("seed, temperature", "temperature", BODY, (), left("temperature")),
        ("tool_choice must be auto", "", BODY, (), left(tool_choice="auto")),
        ("tool_choice is unknown", "", left(tool_choice="auto"), (), left("tool_choice")),
        ("stream is not supported", "", BODY | STREAMED, (), BODY),
        ("only stream mode is supported", "", BODY, (), BODY | {"stream": True}),
        ("unknown field thought", "", BODY, (), left(messages=[MESSAGES[0], {"role": "assistant", "mood": 2}])),
        ("unknown field role", "", BODY, (), None),
        ("something else", "", BODY, (), None),
        ("strict is unknown", "", BODY, (), None),
    ],
)
def test_a_part_that_is_refused_by_name_is_said_otherwise_and_no_other(
    text: str, param: str, body: Any, own: Any, now: Any
):
    learner = Dialect()
    assert learner.learns(refused(text, param), body, set(own)) is (now is not None)
    assert learner.applied(body) == (body if now is None else now)
    assert len(learner.changes) == (now is not None)


def test_a_second_refusal_of_the_same_part_teaches_no_more_and_another_part_does(monkeypatch: pytest.MonkeyPatch):
    warned: list[str] = []
    monkeypatch.setattr(dialect.announce, "warn", warned.append)
    learner = Dialect()
    assert learner.learns(refused("max_tokens"), BODY, set())
    assert not learner.learns(refused("max_completion_tokens"), learner.applied(BODY), set())
    assert learner.learns(refused("tool_choice"), learner.applied(BODY), set())
    assert learner.learns(refused("tool_choice"), learner.applied(BODY), set())
    assert learner.learns(refused("must use stream"), learner.applied(BODY), set())
    assert not learner.learns(refused("stream is off"), learner.applied(BODY), set()), "one of the two it must take"
    assert learner.learns(refused("thought, mood"), learner.applied(BODY), set())
    assert learner.learns(refused("thought"), learner.applied(BODY), set())
    plain = [MESSAGES[0], {"role": "assistant"}]
    assert learner.applied(BODY) == left(
        "max_tokens", "tool_choice", messages=plain, max_completion_tokens=9, stream=True
    )
    assert list(learner.changes) == ["limit", "tool_choice", "stream", "mood", "thought"]
    assert [each.partition("From now on: ")[2] for each in warned] == [
        "max_completion_tokens in place of max_tokens.",
        "tool_choice auto in place of required.",
        "without tool_choice.",
        "answers are streamed.",
        "messages go back without mood.",
        "messages go back without thought.",
    ]
    assert BODY["messages"][1] == {"role": "assistant", "thought": 1, "mood": 2}, "what was sent is not changed"


def call(arguments: Any, name: Any = "answer", number: Any = "1") -> dict[str, Any]:
    return {"id": number, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": "é"}, '{"a": "é"}'),
        (None, "{}"),
        ("", "{}"),
        ("  ", "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        (' "{\\"a\\": 1}"', '{"a": 1}'),
        ('"[1]"', '"[1]"'),
        ('"text"', '"text"'),
        ('"open', '"open'),
        ("not json", "not json"),
        ("1", "1"),
    ],
)
def test_arguments_are_read_as_the_json_text_of_an_object_where_they_are_one(given: Any, read: str):
    completion = Completion.read({"choices": [{"message": {"tool_calls": [call(given)]}}]})
    assert completion.message is not None
    (called,) = completion.message["tool_calls"]
    assert called == {"id": "1", "type": "function", "function": {"name": "answer", "arguments": read}}


@pytest.mark.parametrize(
    ("message", "content", "calls"),
    [
        ({"content": "a"}, "a", []),
        (
            {"content": [{"type": "text", "text": "a"}, {"text": "b"}, {"type": "image", "text": "c"}, "d", 5]},
            "abd",
            [],
        ),
        ({"content": None, "tool_calls": call("{}")}, "", [("1", "answer")]),
        ({"content": 5, "tool_calls": ["x", call("{}", None, 7), call("{}", "b", True)]}, "", [("7", ""), ("", "b")]),
        ({"tool_calls": [{"name": "flat", "arguments": "{}"}]}, "", [("", "flat")]),
        ({"function_call": {"name": "old", "arguments": "{}"}}, "", [("", "old")]),
        ({"function_call": {"name": "old"}, "tool_calls": [call("{}")]}, "", [("1", "answer")]),
        ({"content": "\ud800", "tool_calls": [call("{}")]}, "", []),
    ],
)
def test_a_message_is_read_tolerantly_of_its_form(message: Any, content: str, calls: list[tuple[str, str]]):
    read = Completion.read({"choices": [{"message": message}]}).message
    assert read is not None
    assert (read["role"], read["content"]) == ("assistant", content)
    assert [(each["id"], each["function"]["name"]) for each in read.get("tool_calls", [])] == calls
    assert ("tool_calls" in read) == bool(calls)


@pytest.mark.parametrize(
    ("answer", "reason", "broke_off", "was_filtered"),
    [
        ({"choices": [{"message": {}, "finish_reason": "STOP"}]}, "stop", False, False),
        ({"choices": [{"message": {}, "finish_reason": "Network_Error"}]}, "network_error", True, False),
        ({"choices": [{"message": {}, "finish_reason": "content_filter"}]}, "content_filter", False, True),
        ({"choices": [{"message": {"tool_calls": [call("{}")]}, "finish_reason": "safety"}]}, "safety", False, False),
        ({"choices": [{"finish_reason": "safety"}]}, "safety", False, True),
        ({"choices": [{"message": {}, "finish_reason": 5}]}, "", False, False),
        *(({"choices": given}, "", False, False) for given in ([], None, {}, ["x"])),
    ],
)
def test_why_an_answer_ended_is_read_in_lower_case(answer: Any, reason: str, broke_off: bool, was_filtered: bool):
    completion = Completion.read(answer)
    assert (completion.finish_reason, completion.broke_off) == (reason, broke_off)
    assert completion.was_filtered is was_filtered
    assert (completion.message is None) == ("message" not in str(answer))


def test_errors_and_usage_are_found_in_the_answer_or_in_its_choice_and_what_is_null_is_not_kept():
    whole = Completion.read(
        {"error": "e", "usage": "u", "choices": [{"message": {"content": None, "x": None, "y": 1}}]}
    )
    assert (whole.error, whole.usage, whole.raw) == ("e", "u", {"content": None, "y": 1})
    inner = Completion.read({"choices": [{"error": "e", "usage": "u"}]})
    assert (inner.error, inner.usage, inner.raw) == ("e", "u", {})


@pytest.mark.parametrize(
    ("calls", "kept", "noted"),
    [
        ([], 0, ""),
        ([call("{}")], 1, ""),
        ([call('{"a": 1, "b": 2}'), call('{"b":2,"a":1}')], 1, "2 equal calls"),
        ([call("{"), call("{")], 1, "2 equal calls"),
        ([call("{}"), call("{}", "other")], 1, "2 calls, the first counts"),
        ([call("{}"), call("{"), call("[]")], 1, "3 calls, the first counts"),
    ],
)
def test_of_several_calls_the_first_counts(calls: list[Any], kept: int, noted: str):
    message = {"role": "assistant"} | ({"tool_calls": calls} if calls else {})
    once, said = once_each(message)
    assert once.get("tool_calls", []) == calls[:kept]
    assert said == noted


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("key", "key"),
        (" key\n", "key"),
        (None, "The endpoint needs a key and MY_KEY is not set"),
        ("  ", "The endpoint needs a key and MY_KEY is not set"),
        *((key, "The key in MY_KEY holds a space") for key in ("k e y", "kéy", "k\ney", "k\x7fey")),
    ],
)
def test_the_key_is_that_of_the_variable_without_what_surrounds_it(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(dialect.announce, "say", said.append)
    monkeypatch.delenv("MY_KEY", raising=False)
    if given is not None:
        monkeypatch.setenv("MY_KEY", given)
    spec = TeacherSpec(model="toy", key_variable="MY_KEY")
    if found != "key":
        with pytest.raises(Stop, match=found):
            read_key(spec)
        return
    assert read_key(spec) == "key"
    assert len(said) == (given != "key")


def test_the_key_of_a_block_is_read_from_prefect(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    def load(name: str, **how: Any) -> Any:
        calls.append((name, how))
        if name == "none":
            raise ValueError("no block")
        return SimpleNamespace(get=lambda: "of the block")

    monkeypatch.setattr(Secret, "load", load)
    with pytest.raises(Stop, match="The key in the Prefect Secret block mine holds a space"):
        read_key(TeacherSpec(model="toy", key_block="mine"))
    assert calls == [("mine", {"_sync": True})]
    with pytest.raises(Stop, match="There is no Prefect Secret block named none"):
        read_key(TeacherSpec(model="toy", key_block="none"))
