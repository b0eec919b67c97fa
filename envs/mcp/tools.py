"""Makes functions of the tools that a server lists, so that they are rendered like those of any other environment.

In: name, description and JSON schema of each tool. Out: functions from whose signature and docstring
`get_json_schema` makes the same names, types, descriptions and required arguments.
Why: TRL reads tools from methods (law 1). What a type hint cannot say, such as a range, a default or the fields of an
object, stands as JSON schema in the argument's description.
"""

import json
import re
from collections.abc import Callable
from functools import reduce
from inspect import Parameter, Signature
from keyword import iskeyword
from operator import or_
from typing import Any, Literal

from pydantic import Field

from apprentice.envs.game import EnvironmentSettings

TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
SECTION = re.compile(r"\b(Args|Returns|Raises):")
"""What begins a section of a docstring, wherever it stands."""
TAKEN = ("reset", "get_reward")
"""Methods of an environment that TRL does not take for tools."""


class ListedTool(EnvironmentSettings):
    """A tool, as a server lists it."""

    name: str
    """What the model calls."""
    description: str = ""
    """What it does."""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    """JSON schema of its arguments."""


def functions_of(tools: list[ListedTool], call: Callable[[Any, str, dict[str, Any]], str]) -> list[Callable[..., str]]:
    """Return a function for each tool, to be bound as a method. It runs `call(self, name, arguments)`.

    Raises ValueError for a name that no method or argument can have.
    """
    return [_function(tool, call) for tool in tools]


def _function(tool: ListedTool, call: Callable[[Any, str, dict[str, Any]], str]) -> Callable[..., str]:
    if tool.name.startswith("_") or tool.name in TAKEN:
        raise ValueError(f"a tool cannot be called {tool.name!r}: TRL takes a method of that name for something else")
    schema: dict[str, Any] = _inlined(tool.input_schema, tool.input_schema.get("$defs", {}))
    properties = schema.get("properties", {})
    for name in properties:
        if not name.isidentifier() or iskeyword(name) or name == "self":
            raise ValueError(f"an argument of the tool {tool.name} is called {name!r}, which no Python method takes")

    def method(self: Any, **arguments: Any) -> str:
        return call(self, tool.name, arguments)

    about, described, returned = _parsed(tool.description)
    hints = {name: _hint(each) for name, each in properties.items()}
    needed = schema.get("required", [])
    method.__name__ = method.__qualname__ = tool.name
    method.__annotations__ = {name: hint for name, (hint, _) in hints.items()} | {"return": str}
    method.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter("self", Parameter.POSITIONAL_ONLY),
            *(
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    default=Parameter.empty if name in needed else None,
                    annotation=hint,
                )
                for name, (hint, _) in hints.items()
            ),
        ]
    )
    lines = [about or tool.name]
    if properties:
        lines += ["", "Args:"]
        lines += [
            f"    {name}: {_description(name, each, described, hints[name][1])}" for name, each in properties.items()
        ]
    method.__doc__ = "\n".join([*lines, *(["", "Returns:", f"    {returned}"] if returned else [])])
    return method


def _parsed(description: str) -> tuple[str, dict[str, str], str]:
    """What it does, its arguments and what it returns: FastMCP sends a function's docstring as it is."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    about, arguments, returned = parse_google_format_docstring(description.strip())
    sections = re.search(r"\n\s*(Args|Returns|Raises):\s*\n", description)
    if not sections:  # a colon within a sentence begins no section
        about = description.strip()
    return SECTION.sub(r"\1 :", about or ""), arguments or {}, _one_line(returned or "")


def _description(name: str, schema: dict[str, Any], described: dict[str, str], is_whole: bool) -> str:
    text = _one_line(schema.get("description") or described.get(name) or name)
    if not is_whole:
        rest = {key: value for key, value in schema.items() if key not in ("title", "description")}
        text = f"{text} (JSON schema: {json.dumps(rest, ensure_ascii=False, sort_keys=True)})"
    # transformers reads choices at a description's end as JSON, and fails on others
    return f"{text}." if re.search(r"\(choices:[^)]*\)\s*$", text, re.IGNORECASE) else text


def _one_line(text: str) -> str:
    return SECTION.sub(r"\1 :", " ".join(text.split()))


def _inlined(schema: Any, known: dict[str, Any], seen: tuple[str, ...] = ()) -> Any:
    """The schema with its `$ref`s replaced; one that holds itself is any value."""
    if isinstance(schema, list):
        return [_inlined(each, known, seen) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        found = {} if name in seen else _inlined(known.get(name, {}), known, (*seen, name))
        return found | {key: value for key, value in schema.items() if key != "$ref"}
    return {key: _inlined(value, known, seen) for key, value in schema.items() if key != "$defs"}


def _hint(schema: dict[str, Any]) -> tuple[Any, bool]:
    """The type hint of a JSON schema, and whether it says all that the schema does."""
    rest = schema.keys() - {"title", "description"}
    if schema.get("default", ...) is None:
        rest -= {"default"}
    kinds, options = schema.get("type"), schema.get("anyOf") or schema.get("oneOf")
    values = schema.get("enum")
    if values and all(isinstance(each, str | int | float | None) for each in values):
        return Literal[tuple(values)], rest <= {"enum", "type"}  # type: ignore[valid-type]
    if options:
        hints = [_hint(each) for each in options]
        return reduce(or_, (hint for hint, _ in hints)), all(whole for _, whole in hints) and len(rest) == 1
    if isinstance(kinds, list) and all(kind in TYPES for kind in kinds):
        return reduce(or_, (TYPES[kind] for kind in kinds)), rest <= {"type"}
    if kinds == "array" and isinstance(schema.get("items"), dict):
        hint, is_whole = _hint(schema["items"])
        return list[hint], is_whole and rest <= {"type", "items"}  # type: ignore[valid-type]
    if kinds == "object" and isinstance(schema.get("additionalProperties"), dict):
        hint, is_whole = _hint(schema["additionalProperties"])
        return dict[str, hint], is_whole and rest <= {"type", "additionalProperties"}  # type: ignore[valid-type]
    if isinstance(kinds, str) and kinds in TYPES:
        return TYPES[kinds], rest <= {"type"} or (rest <= {"type", "additionalProperties"} and kinds == "object")
    return Any, not rest
