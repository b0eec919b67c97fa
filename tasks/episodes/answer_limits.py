"""Limits on the size and nesting of a model's answer; an answer beyond them counts as failed.

In: an assistant message. Out: the limit that it exceeds, and its beginning as plain content.
"""

import json
import re
from itertools import accumulate
from typing import Any

MOST_BYTES = 128 * 1024
"""Maximum bytes of a message's text and calls together: about 30,000 tokens."""
MOST_DEPTH = 32
"""Maximum nesting of lists and objects in a call's arguments."""
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A string of JSON text; one that does not end takes the rest of the text."""
BRACKET = re.compile(r"[][{}]")
KEPT = 500
"""Characters of a failed answer that are kept for the record."""


def beyond_limits(message: dict[str, Any]) -> str | None:
    """The limit that an answer exceeds, as text; None when it is within the limits."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    if any(_too_deep(function["arguments"]) for function in functions):
        return f"arguments nested deeper than {MOST_DEPTH} levels"
    texts = [message.get("content"), *(function[part] for function in functions for part in ("name", "arguments"))]
    if sum(_bytes(text) for text in texts if text) > MOST_BYTES:
        return f"an answer of more than {MOST_BYTES // 1024} KiB"
    return None


def cut(message: dict[str, Any]) -> dict[str, Any]:
    """The beginning of an oversized answer as plain content; its calls are not executed."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    parts = [
        message.get("content") or "",
        *(f"{each['name'][:KEPT]}({_begin(each['arguments'])}" for each in functions),
    ]
    return {"role": "assistant", "content": " ".join(filter(None, parts))[:KEPT] + " …"}


def _bytes(text: Any) -> int:
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)  # the depth was checked before
    return len(text.encode(errors="replace")) if len(text) <= MOST_BYTES else len(text)


def _begin(arguments: Any) -> str:
    return arguments[:KEPT] if isinstance(arguments, str) else "…"


def _too_deep(arguments: Any) -> bool:
    """Checks objects level by level, because recursion could fail, and JSON text by counting brackets."""
    if isinstance(arguments, str):
        return _deepest(arguments) > MOST_DEPTH
    level = [arguments]
    for _ in range(MOST_DEPTH + 1):
        nested = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [part for parts in nested for part in parts]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _deepest(text: str) -> int:
    """Maximum number of open brackets outside of JSON strings."""
    brackets = BRACKET.findall(STRING.sub("", text))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0)
