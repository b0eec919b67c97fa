"""Rows that wait for a person's verdict: written for `apprentice import --waiting`, and read back.

In: records whose question no known seed asks. Out: JSON lines with question, answer and `"right": null`, which a person
sets to true or false; then messages, tools and the environment's name, which are read again.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.notations import NotAConversation
from apprentice.tasks.episodes.record import Message, Record, arguments_of
from apprentice.tasks.files.json_lines import as_line
from apprentice.tasks.reporting.errors import Stop

RIGHT = "right"
"""The column of the verdict: true, false, or null as long as nobody has judged."""
OF_A_WAITING_ROW = {"question", "answer", RIGHT, "messages"}
"""Its columns, all of which a row must have: `right` alone may mean anything in rows of others."""


def waiting_row(record: Record) -> dict[str, Any]:
    """The row of a record, for a person to read."""
    return {
        "question": record.messages[1]["content"],
        "answer": answer_of(record.messages),
        RIGHT: None,
        "messages": record.messages,
        "tools": json.loads(record.tools),
        "environment": record.environment,
    }


def answer_of(messages: list[Message]) -> str:
    """What an assistant answers, in short: texts, and calls as `tool(argument=value)`; turns separated by arrows."""
    turns = [message for message in messages if message["role"] == "assistant"]
    return " → ".join(
        " ".join(filter(None, [turn.get("content"), *map(_call, turn.get("tool_calls") or [])])) for turn in turns
    )


def _call(call: dict[str, Any]) -> str:
    function, given = call["function"], arguments_of(call)
    if not isinstance(given, dict):
        return f"{function['name']}({function['arguments']})"
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    return f"{function['name']}({', '.join(arguments)})"


def check_new(file: Path) -> None:
    """Raises Stop where the file exists: it may have a person's verdicts."""
    if file.exists():
        raise Stop(f"{file} exists, and may have verdicts.", "Name a new file with --waiting.")


def write_waiting(records: Iterable[Record], file: Path) -> int:
    """Writes a new file of rows, each once, which only its owner can read, as the log. Returns their number; without
    any there is no file. Raises Stop."""
    lines = dict.fromkeys(as_line(waiting_row(record)) for record in records)
    if lines:
        check_new(file)
        try:
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
                to.writelines(lines)
        except OSError as error:
            raise Stop(f"{file} cannot be written: {error.strerror}.", "Name another file with --waiting.") from error
    return len(lines)


def is_waiting(row: dict[str, Any]) -> bool:
    """Whether a row is one that was written to wait for a verdict."""
    return row.keys() >= OF_A_WAITING_ROW


def verdict_of(row: dict[str, Any]) -> bool | None:
    """What a person says of a row that waited: None as long as nobody has. Raises NotAConversation."""
    right = row[RIGHT]
    if right is not None and not isinstance(right, bool):
        raise NotAConversation(RIGHT, f"it is {json.dumps(right, ensure_ascii=False)[:40]}, not true, false or null")
    return right
