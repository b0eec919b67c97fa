"""Arguments that a table filled with null are absent, unless the tool's schema requires them."""

import json
from typing import Any

import pytest

from apprentice.tasks.formats.conversations import ForeignTurn, NotAConversation, conversation_of
from apprentice.tasks.formats.padding import check_characters, without_absent, without_padding

TEXT, MAYBE = {"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}
POINT = {"type": "object", "properties": {"x": TEXT, "y": MAYBE}, "required": ["x"]}
BOTH = {"type": "object", "properties": {"x": TEXT, "y": MAYBE}, "required": ["x", "y"]}


def tool(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "$defs": {"Both": BOTH}}


@pytest.mark.parametrize(
    ("given", "schema", "expected"),
    [
        ({"message": "a", "content": None}, tool(["message"], message=TEXT), {"message": "a"}),
        ({"message": "a", "reward": None}, tool(["message"], message=TEXT), {"message": "a"}),
        ({"content": "a", "message": None}, tool(["content"], content=TEXT, message=TEXT), {"content": "a"}),
        ({"content": None, "message": "a"}, tool(["message"], content=MAYBE, message=TEXT), {"message": "a"}),
        ({"content": None}, tool(["content"], content=MAYBE), {"content": None}),
        ({"content": None}, tool(["content"], content=TEXT), {"content": None}),
        ({"at": {"x": "a", "y": None}}, tool(["at"], at=POINT), {"at": {"x": "a"}}),
        ({"at": {"x": "a", "y": None, "z": None}}, tool(["at"], at=BOTH), {"at": {"x": "a", "y": None}}),
        ({"at": None}, tool([], at=POINT), {}),
        ({"at": {"x": None, "y": None}}, tool([], at={"type": "object"}), {"at": {}}),
        (
            {"all": [{"x": "a", "y": None}, {"x": "b", "y": "c"}]},
            tool(["all"], all={"type": "array", "items": POINT}),
            {"all": [{"x": "a"}, {"x": "b", "y": "c"}]},
        ),
        ({"all": ["a", None]}, tool(["all"], all={"type": "array", "items": MAYBE}), {"all": ["a", None]}),
        ({"at": {"x": "a", "y": None}}, tool(["at"], at={"$ref": "#/$defs/Both"}), {"at": {"x": "a", "y": None}}),
        (
            {"at": {"x": "a", "y": None}},
            tool([], at={"anyOf": [{"$ref": "#/$defs/Both"}, {"type": "null"}]}),
            {"at": {"x": "a", "y": None}},
        ),
        ({"at": {"x": "a", "y": None}}, tool([], at={"anyOf": [POINT, BOTH]}), {"at": {"x": "a"}}),
        ({"at": {"x": "a", "y": None}}, tool([], at={"allOf": [BOTH]}), {"at": {"x": "a", "y": None}}),
        (
            {"by": {"one": {"x": "a", "y": None}, "two": None}},
            tool(["by"], by={"type": "object", "additionalProperties": BOTH}),
            {"by": {"one": {"x": "a", "y": None}}},
        ),
        ({"a": None, "b": 0, "c": "", "d": False, "e": []}, tool([]), {"b": 0, "c": "", "d": False, "e": []}),
        ({"at": {"y": None}}, tool([], at=True), {"at": {}}),
    ],
)
def test_null_that_the_schema_does_not_require_is_absent(given: Any, schema: Any, expected: Any):
    assert without_absent(given, schema) == expected


def test_a_schema_that_refers_to_itself_ends():
    loop = {"$ref": "#/$defs/Loop", "$defs": {"Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]}}}
    assert without_absent({"a": {"a": None}}, loop) == {"a": {}}


@pytest.mark.parametrize(
    ("arguments", "own", "expected"),
    [
        ({"message": "ä", "content": None}, False, '{"message": "ä"}'),
        ({"message": "ä", "content": None}, True, '{"message": "ä"}'),
        ('{"message": "a","content": null}', False, '{"message": "a"}'),
        ('{"message": "a","content": null}', True, '{"message": "a","content": null}'),
        ('{"message":  "a"}', False, '{"message":  "a"}'),
        ('{"message": ', False, '{"message": '),
        ("[null]", False, "[null]"),
    ],
)
def test_arguments_that_are_text_stay_as_they_are_in_a_rollout_of_this_project(
    arguments: Any, own: bool, expected: str
):
    tools = [{"function": {"name": "echo", "parameters": tool(["message"], message=TEXT)}}]
    turn = ForeignTurn.model_validate({"role": "assistant", "tool_calls": [{"name": "echo", "arguments": arguments}]})
    assert without_padding(turn, tools, own).tool_calls[0].arguments == expected


HALF = "\ud83d"


def said(**turn: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", **turn}]}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": HALF, "completion": "a"}, "messages.0.content"),
        (said(content=f"a{HALF}"), "messages.1.content"),
        (said(content=[{"type": "text", "text": HALF}]), "messages.1.content"),
        (said(tool_calls=[{"name": "a", "arguments": {"b": HALF}}]), "messages.1.tool_calls.0"),
        (said(tool_calls=[{"name": "a", "arguments": json.dumps({"b": HALF})}]), "messages.1.tool_calls.0"),
        (said(tool_calls=[{"name": HALF, "arguments": {}}]), "messages.1.tool_calls.0"),
        (said(tool_calls=[{"id": "\udcff", "name": "a", "arguments": {}}]), "messages.1.tool_calls.0"),
        (said(content="a") | {"environment": "", "seed": 1, "tools": "[]", "correct": HALF}, "correct"),
        (said(content="😀 \\ud83d"), ""),
        (said(content="a") | {"note": HALF}, ""),
    ],
)
def test_half_a_character_is_refused_by_its_field_where_the_row_is_used(row: dict[str, Any], field: str):
    claim = conversation_of(row)
    if not field:
        check_characters(claim)
        return
    with pytest.raises(NotAConversation, match="half a character") as refused:
        check_characters(claim)
    assert refused.value.field == field
