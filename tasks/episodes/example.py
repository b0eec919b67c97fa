"""An episode with calls of a tool, whose values are made up: what a chat template makes of calls is seen by it.

In: a tool's schema. Out: messages, or drafts of what does not depend on the values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apprentice.tasks.episodes.drafts import CONTEXT, Drafts
from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import prompt_ids, row_ids, written_row
from apprentice.tasks.episodes.thinking import THOUGHT, thinking_of

REPLY = "reply-7f3a"
THOUGHTS = ("47 + 30 = 77.", "It's 85,\nnot 84.")
VALUES: dict[str, Any] = {
    "string": "-57",  # a parser that guesses types makes a number of it
    "integer": 7,
    "number": 1.5,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}
OTHERS: dict[str, Any] = {
    "string": "qz",
    "integer": 40,
    "number": 20.25,
    "boolean": True,
    "array": ["qz"],
    "object": {"qz": 1},
    "null": None,
}
"""Other values of the same types, where there are any."""


def example_episode(
    function: dict[str, Any], thoughts: Sequence[str] = ("", ""), values: Mapping[str, Any] = VALUES
) -> list[Message]:
    """An episode with two calls of a tool, each with its thought and its reply."""
    given = {name: _example(schema, values) for name, schema in function["parameters"]["properties"].items()}
    call_turn = turn_of(function["name"], given)
    reply = {"role": "tool", "name": function["name"], "content": REPLY}
    opening = [{"role": "system", "content": "system"}, {"role": "user", "content": "user"}]
    first, second = (call_turn | ({THOUGHT: thought} if thought else {}) for thought in thoughts)
    return [*opening, first, reply, second, reply]


def calls_with_other_values(tools: list[dict[str, Any]]) -> list[Message]:
    """Calls of all tools, which have in common what does not depend on a call's values: of a single tool one for each
    value that an argument may have, where they are few, and of several tools one each."""
    calls = []
    for function in (tool["function"] for tool in tools):
        values = {name: _values(schema) for name, schema in function["parameters"]["properties"].items()}
        number = max(map(len, values.values()), default=1) if len(tools) == 1 else 1
        calls += [
            turn_of(function["name"], {name: each[at % len(each)] for name, each in values.items()})
            for at in range(number)
        ]
    return calls


def _values(schema: dict[str, Any]) -> list[Any]:
    """What an argument may be: all of few values, or two that begin differently."""
    if schema.get("enum"):
        return list(schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return [value for each in options for value in _values(each)]
    if isinstance(types := schema.get("type"), list):
        return [value for each in types for value in _values(schema | {"type": each})]
    return [_example(schema, values) for values in (VALUES, OTHERS)]


def drafts_of(tokenizer: Any, tools: list[dict[str, Any]]) -> Drafts:
    """What is written the same way in every call of these tools."""

    def first_call(function: dict[str, Any], values: Mapping[str, Any], thought: str) -> list[int]:
        """The ids of the prompt's end, and of the turn with the call."""
        messages = example_episode(function, (thought, thought), values)[:3]
        prefix = prompt_ids(tokenizer, messages[:2], tools)
        return prefix[-CONTEXT:] + row_ids(tokenizer, written_row(messages, tools))[len(prefix) :]

    thoughts = THOUGHTS if thinking_of(tokenizer) else ("", "")
    versions = [*zip((VALUES, OTHERS), thoughts, strict=True)]
    return Drafts([[first_call(tool["function"], *version) for version in versions] for tool in tools])


def _example(schema: dict[str, Any], values: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0 if values is VALUES else -1]
    if "const" in schema:
        return schema["const"]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _example(next((each for each in options if each.get("type") != "null"), {}), values)
    if properties := schema.get("properties"):
        return {name: _example(each, values) for name, each in properties.items()}
    types = schema.get("type", "string")
    kind = types if isinstance(types, str) else types[0]
    if kind == "array" and values is OTHERS and isinstance(items := schema.get("items"), dict):
        return [_example(items, values)]
    return values[kind]
