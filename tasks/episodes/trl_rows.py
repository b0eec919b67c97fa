"""Rollouts as rows that TRL's SFTTrainer reads, and the messages of such a row as they were.

In: a rollout. Out: a row with the token ids of our own SFT, its closing turn aside, under every template of
docs/students.md. A call's arguments are a mapping, as TRL documents it: most templates would write text encoded twice.
`datasets` reads messages with unequal keys as JSON, so an argument that another call has becomes no null.
Why not as the rollouts are stored: these are read without `datasets`, and keep each call's spelling.
"""

import json
from collections.abc import Callable
from typing import Any

from apprentice.envs.base import without_return
from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.episodes.record import Record, as_text, with_arguments
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.reporting import announce

EXACT = "openai_messages"
"""The column with the messages that such a row cannot hold exactly, by their places, as JSON text; empty for most."""


def row_writer() -> Callable[[Record], dict[str, Any]]:
    """What makes a row of a rollout; it warns of the first number that `datasets` reads as another one."""
    warned = False

    def row_of(record: Record) -> dict[str, Any]:
        nonlocal warned
        given = json.loads(record.line())
        messages = [_as_read_by_trl(message) for message in given["messages"]]
        if not warned and (changed := _changed(given["messages"])):
            warned = True
            announce.warn(
                f"The package datasets reads {changed} of seed {record.seed} as another number, so TRL learns that "
                "one. There may be more such rows."
            )
        pairs = zip(given["messages"], with_arguments(messages, as_text), strict=True)
        exact = {at: was for at, (was, now) in enumerate(pairs) if was["role"] == "assistant" and was != now}
        return given | {
            "messages": messages,
            "tools": json.dumps(without_return(json.loads(record.tools)), ensure_ascii=False),
            "chat_template_kwargs": TEMPLATE_ARGUMENTS,
            EXACT: json.dumps(exact, ensure_ascii=False) if exact else "",
        }

    return row_of


def exact_messages(row: dict[str, Any]) -> Any:
    """The messages of a row, those of the column EXACT in their places. Raises ValueError if that is none."""
    messages, exact = row["messages"], row.get(EXACT)
    if not isinstance(messages, list) or not exact:
        return messages
    read = json.loads(exact) if isinstance(exact, str) else exact
    return [read.get(str(at), message) for at, message in enumerate(messages)] if isinstance(read, dict) else messages


def _as_read_by_trl(message: Message) -> Message:
    """A message with what our own training renders of it: templates would also render a reply's name or number."""
    calls = [{"type": "function", "function": call["function"]} for call in message.get("tool_calls") or []]
    kept = {"role": message["role"], "content": message.get("content") or ""} | ({"tool_calls": calls} if calls else {})
    weight = {"weight": message["weight"]} if "weight" in message else {}
    return with_arguments([kept | weight], _mapping)[0]


def _mapping(call: dict[str, Any]) -> Any:
    """The arguments as a mapping; as text where they are none, or where `datasets` could not read the file."""
    arguments = _arguments(call)
    return arguments if isinstance(arguments, dict) and _as_read(arguments) is not None else as_text(call)


def _arguments(call: dict[str, Any]) -> Any:
    try:
        return json.loads(as_text(call))
    except (ValueError, RecursionError):
        return None


def _changed(messages: list[Message]) -> str:
    """The arguments of the first call with a number that `datasets` changes; empty without one."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    given = [each for each in map(_arguments, calls) if isinstance(each, dict)]
    return next((json.dumps(each) for each in given if _as_read(each) != each), "")


def _as_read(arguments: dict[str, Any]) -> Any:
    """The arguments as the type Json of `datasets` reads them, by pandas' parser; None where that refuses them."""
    from pandas.io.json import ujson_dumps, ujson_loads

    try:
        return ujson_loads(ujson_dumps(arguments))
    except (ValueError, OverflowError):
        return None
