"""A tool as data: what the model reads of it, and what runs when the model calls it.

In: a method with type hints and a docstring. Out: its name, its JSON schema and a callable.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from types import MethodType
from typing import Any, NamedTuple


class Tool(NamedTuple):
    """A tool of a player."""

    name: str
    schema: dict[str, Any]
    """The JSON schema, as every prompt has it, in training, evaluation and at a server."""
    described: dict[str, Any]
    """The schema as transformers derives it: with `return`, which servers drop or refuse."""
    call: Callable[..., str]
    """A method, whose signature the arguments must fit. Raises ValueError with a message for the model."""

    @classmethod
    def of(cls, method: MethodType) -> "Tool":
        """Return the tool that a method is."""
        described = _described(method.__func__)
        return cls(method.__name__, without_return([described])[0], described, method)


@cache
def _described(function: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils.chat_template_utils import get_json_schema

    return get_json_schema(MethodType(function, object()))  # bound, so that `self` is not a parameter


def tools_text(tools: Sequence[Tool]) -> str:
    """Return the schemas as JSON text, as records and training rows store them."""
    return json.dumps([tool.schema for tool in tools], ensure_ascii=False)


def described_text(tools: Sequence[Tool]) -> str:
    """Return the schemas with `return` as JSON text, by which a collection knows its prompt since version 1."""
    return json.dumps([tool.described for tool in tools], ensure_ascii=False)


def without_return(schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the schemas without transformers' `return`, which OpenAI's format does not have."""
    return [
        schema | {"function": {name: part for name, part in schema["function"].items() if name != "return"}}
        for schema in schemas
    ]


def are_tools_of(tools: Sequence[Tool], given: Any) -> bool:
    """Whether a record's tools, as JSON or its text, are these; `return` does not count."""
    try:
        schemas = json.loads(given) if isinstance(given, str) else given
        return without_return(schemas) == [tool.schema for tool in tools]
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
