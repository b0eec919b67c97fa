"""The log of `apprentice serve`: what its lines are, and which of its rows are conversations of their own.

In: rows of a log. Out: for each conversation its longest row. Also joins the parts of a streamed answer.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from apprentice.tasks.episodes.thinking import THOUGHT

HEADER = "apprentice_log"
"""The field of the first line, which is no row."""
ABOUT = {
    "messages": "the conversation as the client sent it, and the answer as its last message",
    "tools": "the tools' schemas as the client sent them",
    "key": "the key of the model that answered",
    "revision": "its revision",
    "at": "when, in UTC",
    "usage": "tokens, as the engine counted them",
}
"""The fields of a row."""
R = TypeVar("R", bound=tuple[str, Any])


def joined(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message of a streamed answer: its text, its thought, and its calls in their order."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    thought = ""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            message["content"] += delta.get("content") or ""
            thought += delta.get(THOUGHT) or delta.get("reasoning") or ""
            for part in delta.get("tool_calls") or []:
                _extend(calls.setdefault(part.get("index") or 0, {"type": "function"}), part)
    message |= {THOUGHT: thought} if thought else {}
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})


def _extend(call: dict[str, Any], part: dict[str, Any]) -> None:
    known, more = call.setdefault("function", {"name": "", "arguments": ""}), part.get("function") or {}
    call |= {name: part[name] for name in ("id", "type") if part.get(name)}
    for name in known:
        known[name] += more.get(name) or ""


def is_header(row: Any) -> bool:
    """Whether a row is the first line of a log."""
    return isinstance(row, dict) and HEADER in row


def conversations(rows: Iterable[R]) -> Iterator[R]:
    """Yield a log's rows without its first line, and without those that another row goes on from; other rows as they
    are.

    Args:
        rows: Each with its place, then its data.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))
    if not any(is_header(data) for _, data in first):
        yield from itertools.chain(first, rows)
        return
    logged = [row for row in rows if not is_header(row[1])]
    said = [_said(data) for _, data in logged]
    continued = {each[:place] for each in said for place in range(1, len(each))}
    yield from (row for row, each in zip(logged, said, strict=True) if each not in continued)


def _said(row: Any) -> tuple[Any, ...]:
    """What makes two conversations the same up to a message: who said what, calls by their functions."""
    messages = row.get("messages") if isinstance(row, dict) else None
    return tuple(map(_key, messages)) if isinstance(messages, list) else ()


def _key(message: Any) -> Any:
    if not isinstance(message, dict):
        return repr(message)
    calls = [str(each.get("function")) for each in message.get("tool_calls") or [] if isinstance(each, dict)]
    return message.get("role"), message.get("content") or "", tuple(calls)
