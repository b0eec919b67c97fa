"""Rollouts as rows that TRL's SFTTrainer reads, and the messages of such a row as they were.

In: a rollout. Out: a row with the token ids of our own SFT, its closing turn aside, under every template of
docs/students.md. A call's arguments are a mapping, as TRL documents it: most templates would write text encoded twice.
`datasets` reads messages with unequal keys as JSON, so an argument that another call has becomes no null.
Why not as the rollouts are stored: these are read without `datasets`, and keep each call's spelling.
"""

import json
from collections.abc import Callable
from typing import Any

from apprentice.envs.tools import without_return
from apprentice.tasks.episodes.record import Message, Record, as_text, with_arguments
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.episodes.texts import read_json
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.reporting import announce

EXACT = "openai_messages"
"""The column with the messages that such a row cannot hold exactly, by their places, as JSON text; empty for most."""


def row_writer() -> Callable[[Record], dict[str, Any]]:
    """What makes a row of a rollout; it warns of the first row that TRL learns otherwise than we do, and why."""
    warned: set[str] = set()

    def warn(kind: str, text: str) -> None:
        if kind not in warned:
            warned.add(kind)
            announce.warn(f"{text} There may be more such rows.")

    def row_of(record: Record) -> dict[str, Any]:
        given = json.loads(record.line())
        messages = [_as_read_by_trl(message) for message in given["messages"]]
        if changed := _changed(given["messages"]):
            cannot = f"The package datasets cannot keep {changed} of seed {record.seed} as it is"
            warn("number", f"{cannot}, so TRL learns another number, or the arguments as a text.")
        if any(message.get("weight") == 0 for message in given["messages"]):
            warn("weight", f"A turn of seed {record.seed} has weight 0, and TRL learns it: it reads no weight.")
        pairs = zip(given["messages"], with_arguments(messages, as_text), strict=True)
        said = {at: pair for at, pair in enumerate(pairs) if pair[0]["role"] == "assistant"}
        exact = {at: was for at, (was, now) in said.items() if was != now or _changed([was])}
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
    kept |= {THOUGHT: message[THOUGHT]} if message.get(THOUGHT) else {}
    weight = {"weight": message["weight"]} if "weight" in message else {}
    return with_arguments([kept | weight], _mapping)[0]


def _mapping(call: dict[str, Any]) -> Any:
    """The arguments as a mapping; as text where they are none, or where `datasets` could not read them back."""
    given = read_json(as_text(call), parse_int=_of_64_bits)
    return given if isinstance(given, dict) and _as_read(given) is not None else as_text(call)


def _of_64_bits(digits: str) -> int:
    """The number. Raises ValueError for a larger one, of which pandas' parser makes any other."""
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{digits[:40]} has more than 64 bits")
    return number


def _changed(messages: list[Message]) -> str:
    """The arguments of the first call with a number that `datasets` changes; empty without one."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    given = [each for call in calls if isinstance(each := read_json(as_text(call)), dict)]
    return next((json.dumps(each) for each in given if _as_read(each) != each), "")


def _as_read(arguments: dict[str, Any]) -> Any:
    """The arguments as the type Json of `datasets` reads them, by pandas' parser; None where that refuses them."""
    from pandas.io.json import ujson_dumps, ujson_loads

    try:
        return ujson_loads(ujson_dumps(arguments))
    except (ValueError, OverflowError):
        return None
