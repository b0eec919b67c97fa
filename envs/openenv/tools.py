"""Makes tools of what a server lists, so that a model reads them as those of any other environment.

In: name, description and JSON schema of each tool, or the schema of an OpenEnv action. Out: `Tool`s, whose schemas are
the server's own, without references and titles.
"""

import re
from collections.abc import Callable
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import Any

from pydantic import Field

from apprentice.envs.game import EnvironmentSettings
from apprentice.envs.tools import Tool

SECTION = re.compile(r"\n\s*(Args|Returns|Raises):\s*\n")
ACT = "act"
"""The tool of an environment that has one kind of action."""
NOT_OF_A_CALL = ("metadata",)
"""Fields of every OpenEnv action that no player fills in."""


class ListedTool(EnvironmentSettings):
    """A tool, as a server lists it."""

    name: str
    """What the model calls."""
    description: str = ""
    """What it does."""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    """JSON schema of its arguments."""
    fixed: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda fixed: not fixed)
    """Fields of an action that are the same in every call, such as the name of its kind."""


def tool_of(listed: ListedTool, call: Callable[[ListedTool, dict[str, Any]], str]) -> Tool:
    """Return the tool of a server, which runs `call(listed, arguments)`."""
    about, described = _parsed(listed.description)
    schema: dict[str, Any] = inlined(listed.input_schema)
    properties = {
        name: {"description": described.get(name) or name.replace("_", " ")} | each
        for name, each in schema.get("properties", {}).items()
    }
    needed = [name for name in schema.get("required", []) if name in properties]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    parameters |= {"required": needed} if needed else {}
    function = {"name": listed.name, "description": about or listed.name.replace("_", " "), "parameters": parameters}
    rendered = {"type": "function", "function": function}

    def method(**arguments: Any) -> str:
        return call(listed, arguments)

    method.__name__ = method.__qualname__ = listed.name
    if all(name.isidentifier() and not iskeyword(name) for name in properties):
        kinds = {name: Parameter.empty if name in needed else None for name in properties}
        method.__signature__ = Signature(  # type: ignore[attr-defined]
            [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in kinds.items()]
        )
    return Tool(listed.name, rendered, rendered, method)


def tools_of_action(schema: dict[str, Any]) -> list[ListedTool]:
    """Return the tools that an action's JSON schema stands for: one, or one for each member of a union."""
    defs = schema.get("$defs", {})
    members = schema.get("oneOf") or schema.get("anyOf") or []
    if not members:
        return [_tool_of_member(inlined(schema), "")]
    tools = []
    for each in members:
        named = defs.get(str(each.get("$ref", "")).rpartition("/")[2], each)
        if named.get("type", "object") == "object":  # a union may hold null
            tools.append(_tool_of_member(inlined(each | {"$defs": defs}), str(named.get("title") or ACT)))
    return sorted(tools, key=lambda tool: tool.name)


def _tool_of_member(schema: dict[str, Any], title: str) -> ListedTool:
    """`title`: of the member of a union; empty for an action that is the only one."""
    own = {name: each for name, each in schema.get("properties", {}).items() if name not in NOT_OF_A_CALL}
    fixed = {name: _only(each) for name, each in own.items() if _only(each) is not None}
    own = {name: each for name, each in own.items() if name not in fixed}
    texts = [each for each in fixed.values() if isinstance(each, str)]
    name = _snake(texts[0] if texts else title) if title else ACT
    needed = [each for each in schema.get("required", []) if each in own]
    shown = {"type": "object", "properties": own} | ({"required": needed} if needed else {})
    about = " ".join(str(schema.get("description") or "").split()) or ("" if title else "Act in the environment.")
    return ListedTool(name=name, description=about, input_schema=shown, fixed=fixed)


def _only(schema: dict[str, Any]) -> Any:
    """Return the one value that a field can have; None if there are several."""
    return schema.get("const", schema["enum"][0] if len(schema.get("enum", ())) == 1 else None)


def _snake(title: str) -> str:
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title.removesuffix("Action") or title)).lower()


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its `$ref`s replaced and without titles; a part that holds itself is any value."""
    return _inlined(schema, schema.get("$defs", {}))


def _inlined(schema: Any, known: dict[str, Any], seen: tuple[str, ...] = ()) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, known, seen) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        found = {} if name in seen else _inlined(known.get(name, {}), known, (*seen, name))
        return found | {key: value for key, value in schema.items() if key != "$ref"}
    if (one := _or_null(schema)) is not None:
        return _inlined(one, known, seen)
    schema = _with_kinds(schema, known)
    return {
        key: {name: _inlined(each, known, seen) for name, each in value.items()}
        if key == "properties" and isinstance(value, dict)  # an argument may be called title
        else _inlined(value, known, seen)
        for key, value in schema.items()
        if key not in ("$defs", "title", "discriminator")
    }


def _with_kinds(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return a union whose members require the field that tells them apart: pydantic refuses one without it, though
    the schema gives it a default."""
    kind = (schema.get("discriminator") or {}).get("propertyName")
    members = schema.get("oneOf")
    if not kind or not isinstance(members, list):
        return schema
    found = [known.get(str(each.get("$ref", "")).rpartition("/")[2], each) for each in members]
    return schema | {
        "oneOf": [each | {"required": [kind, *(n for n in each.get("required", []) if n != kind)]} for each in found]
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a schema that may be null as transformers writes one: its type, and that it is `nullable`. None for any
    other schema, and for one whose type stands in a reference."""
    options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) != 1 or len(schema["anyOf"]) != 2 or not options[0].keys() & {"type", "enum"}:
        return None
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    default = {} if schema.get("default") is None else {"default": schema["default"]}
    return options[0] | rest | default | {"nullable": True}


def _parsed(description: str) -> tuple[str, dict[str, str]]:
    """What a tool does, and its arguments: FastMCP sends a function's docstring as it is."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    if not SECTION.search(description):  # a colon within a sentence begins no section
        return description.strip(), {}
    about, arguments, returned = parse_google_format_docstring(description.strip())
    ends = f" Returns {returned[0].lower()}{returned[1:]}" if returned else ""
    return (about or "").strip() + " ".join(ends.split("\n")), arguments or {}
