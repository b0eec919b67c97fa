"""How much one answer of a model may be: beyond it, it is a failed answer, whoever gave it.

In: an assistant message. Out: what is too much about it, and what is kept of it.
Why: whatever a model says is written down with its episode, read by a JSON parser and checked against a schema. Twenty
megabytes fill a disk, and a thousand brackets within one another end in Python's RecursionError.
"""

import json
from typing import Any

MOST_BYTES = 128 * 1024
"""Of a message's text and its calls together: about 30,000 tokens."""
MOST_DEPTH = 32
"""Lists and structures within one another in a call's arguments."""
KEPT = 500
"""Characters of a failed answer that are kept, for people."""


def beyond_limits(message: dict[str, Any]) -> str | None:
    """What is too much about an answer; None where it is within the limits."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    if any(_too_deep(function["arguments"]) for function in functions):
        return f"arguments nested deeper than {MOST_DEPTH} levels"
    texts = [message.get("content"), *(function[part] for function in functions for part in ("name", "arguments"))]
    if sum(_bytes(text) for text in texts if text) > MOST_BYTES:
        return f"an answer of more than {MOST_BYTES // 1024} KiB"
    return None


def cut(message: dict[str, Any]) -> dict[str, Any]:
    """The beginning of an answer that is beyond the limits, as plain content: its calls are not executed."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    parts = [
        message.get("content") or "",
        *(f"{each['name'][:KEPT]}({_begin(each['arguments'])}" for each in functions),
    ]
    return {"role": "assistant", "content": " ".join(filter(None, parts))[:KEPT] + " …"}


def _bytes(text: Any) -> int:
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)  # not too deep, so it can be written
    return len(text.encode(errors="replace")) if len(text) <= MOST_BYTES else len(text)


def _begin(arguments: Any) -> str:
    return arguments[:KEPT] if isinstance(arguments, str) else "…"


def _too_deep(arguments: Any) -> bool:
    """Level by level, as whatever descends would end in a RecursionError; of a text by its brackets alone."""
    if isinstance(arguments, str):
        return _deepest(arguments) > MOST_DEPTH
    level = [arguments]
    for _ in range(MOST_DEPTH + 1):
        level = [part for each in level if isinstance(each, dict | list) for part in _parts(each)]
    return any(isinstance(each, dict | list) for each in level)


def _parts(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _deepest(text: str) -> int:
    """How many brackets are open at once, outside of JSON's strings."""
    depth = deepest = 0
    in_string = escaped = False
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return 0
    for letter in text:
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            in_string = True
        elif letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest
