"""What a table or a file added to a conversation: null for arguments that nobody gave, and halves of characters.

In: a conversation that was read, the tools of the environment. Out: its calls without the null; an error that names
the field with a character that nothing can write.
"""

import json
from collections.abc import Iterator
from typing import Any

from apprentice.tasks.episodes.texts import is_broken, read_json
from apprentice.tasks.formats.conversations import Conversation, ForeignTurn, NotAConversation

MOST_DEPTH = 16
"""Of schemas within one another; one may refer to itself."""
Schema = dict[str, Any]


def check_characters(claim: Conversation) -> None:
    """Raises NotAConversation for a text with half a character, which no file and no request can hold. In a rollout of
    this project an argument may name one by its number, as its player did, and the environment was given none."""
    texts: dict[str, Any] = dict(claim.about)
    for at, turn in enumerate(claim.messages):
        texts[f"messages.{at}.content"] = turn.content
        texts[f"messages.{at}.reasoning_content"] = turn.thought
        for number, call in enumerate(turn.tool_calls):
            read = None if claim.environment else read_json(call.arguments)
            texts[f"messages.{at}.tool_calls.{number}"] = [call.id, call.name, call.arguments, read]
    for field, text in texts.items():
        if is_broken(text):
            raise NotAConversation(field, "it holds half a character (a lone surrogate, or bytes that are not UTF-8)")


def without_padding(turn: ForeignTurn, tools: list[dict[str, Any]], own: bool) -> ForeignTurn:
    """The turn without arguments that are null and that their tool's schema does not require: Arrow writes them for
    every argument that another row has.

    Args:
        own: Whether the row is a rollout of this project. Arrow does not fill arguments that are text, so they stay.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls = []
    for call in turn.tool_calls:
        given = read_json(call.arguments) if call.as_object or not own else None
        if isinstance(given, dict) and call.name in schemas:
            present = without_absent(given, schemas[call.name])
            if present != given:
                call = call.model_copy(update={"arguments": json.dumps(present, ensure_ascii=False)})
        calls.append(call)
    return turn.model_copy(update={"tool_calls": calls})


def without_absent(value: Any, schema: Schema, root: Schema | None = None) -> Any:
    """A value without the keys that are null and that its JSON schema does not require, at any depth.

    Args:
        root: The schema that has the definitions to which `schema` refers. Default: `schema`.
    """
    root = schema if root is None else root
    shapes = list(_shapes(schema, root))
    if isinstance(value, list):
        items = next((each["items"] for each in shapes if "items" in each), {})
        return [without_absent(each, items, root) for each in value]
    if not isinstance(value, dict):
        return value
    required = {name for each in shapes for name in each.get("required", ())}
    parts = {name: part for each in shapes for name, part in each.get("properties", {}).items()}
    other = next((each["additionalProperties"] for each in shapes if "additionalProperties" in each), {})
    return {
        name: without_absent(each, parts.get(name, other), root)
        for name, each in value.items()
        if each is not None or name in required
    }


def _shapes(schema: Any, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """The schema and those that it is made of. Of several alternatives it is not known which one applies, so that they
    require nothing."""
    if not isinstance(schema, dict) or depth > MOST_DEPTH:
        return
    yield schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    for definitions in ("$defs", "definitions"):
        yield from _shapes(root.get(definitions, {}).get(name), root, depth + 1)
    for each in schema.get("allOf", ()):
        yield from _shapes(each, root, depth + 1)
    for kind in ("anyOf", "oneOf"):
        alternatives = [each for each in schema.get(kind, ()) if each != {"type": "null"}]
        for each in alternatives:
            for shape in _shapes(each, root, depth + 1):
                yield shape if len(alternatives) == 1 else {k: v for k, v in shape.items() if k != "required"}
