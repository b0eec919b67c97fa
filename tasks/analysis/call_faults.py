"""Explains tool calls that do not parse; the cause may be a single invisible character.

In: a conversation. Out: a line for each call that is not valid JSON or is incomplete.
"""

import json
import re
from typing import Any

from apprentice.tasks.reporting.text import visible

WRITTEN = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
"""A call in the chat template's format; a call that does not parse stays in the message's text."""


def faults_of_calls(messages: list[dict[str, Any]]) -> list[str]:
    faults = []
    for message in messages:
        if message["role"] != "assistant":
            continue
        for body, end in WRITTEN.findall(message.get("content") or ""):
            faults.append(_fault(body, end))
        faults += [_json_fault(call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return [fault for fault in faults if fault]


def _fault(body: str, end: str) -> str:
    if not end:
        return "it breaks off before </tool_call>"
    if fault := _json_fault(body):
        return fault
    called = json.loads(body)
    if not isinstance(called, dict) or not {"name", "arguments"} <= called.keys():
        return "it is not an object with name and arguments"
    return ""


def _json_fault(text: Any) -> str:
    try:
        json.loads(text) if isinstance(text, str) else None
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 1]
        at = f"at {visible(found)!r}" if found.isprintable() and found else f"at the invisible {visible(found)}"
        return f"{error.msg}, character {error.pos + 1}, {at if found else 'at its end'}"
    except RecursionError:
        return "it is nested too deeply"
    return ""
