"""Reads an answer: tolerant of its form, strict of its content.

In: the endpoint's JSON. Out: the message of the conversation, the message that goes back to the endpoint, the usage.
Why not the SDK's types: endpoints differ in all other fields, and those have to go back as they came.
"""

import json
from typing import Any, NamedTuple

from apprentice.tasks.episodes.episode import Message

BROKEN_OFF = ("error", "abort", "cancel", "malformed", "insufficient", "network", "timeout", "unknown")
"""What a finish reason contains where the endpoint, and not the model, ended the answer."""
FILTERED = ("content_filter", "content-filter", "safety", "prohibited", "recitation", "blocklist", "spii")
"""What a finish reason contains where a filter took the answer away."""


class Completion(NamedTuple):
    """One answer.

    Attributes:
        message: With only the fields of a conversation; None where the answer holds no message.
        raw: The endpoint's own message, unchanged but for fields that are null; empty without one.
        finish_reason: In lower case; empty if unknown.
        error: The error inside of the answer, unchecked; None without one.
        usage: The endpoint's usage, unchecked; see `usage_of`.
    """

    message: Message | None
    raw: dict[str, Any]
    finish_reason: str
    error: Any
    usage: Any

    @classmethod
    def read(cls, answer: dict[str, Any]) -> "Completion":
        """Parses an answer; one of another shape becomes a completion without a message."""
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        raw = first.get("message")
        error = answer.get("error") or first.get("error")
        usage = answer.get("usage") or first.get("usage")
        reason = first.get("finish_reason")
        if not isinstance(raw, dict):
            return cls(None, {}, _text(reason).lower(), error, usage)
        kept = {name: value for name, value in raw.items() if value is not None or name == "content"}
        return cls(_normalized(raw), kept, _text(reason).lower(), error, usage)

    @property
    def broke_off(self) -> bool:
        """Whether the endpoint broke the answer off, so that it is not the model's."""
        return any(word in self.finish_reason for word in BROKEN_OFF)

    @property
    def was_filtered(self) -> bool:
        """Whether a filter took the answer away, so that no call is left."""
        called = self.message is not None and bool(self.message.get("tool_calls"))
        return not called and any(word in self.finish_reason for word in FILTERED)


def _normalized(raw: dict[str, Any]) -> Message:
    """The message in OpenAI's format: text, and calls whose arguments are JSON text."""
    given = raw.get("tool_calls")
    given = [given] if isinstance(given, dict) else given
    legacy = raw.get("function_call")
    calls = [_call(each) for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    if not calls and isinstance(legacy, dict):
        calls = [_call({"function": legacy})]
    message: Message = {"role": "assistant", "content": _content(raw.get("content"))}
    whole = message | ({"tool_calls": calls} if calls else {})
    try:
        json.dumps(whole, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express and UTF-8 cannot encode
        return {"role": "assistant", "content": ""}
    return whole


def _call(given: dict[str, Any]) -> dict[str, Any]:
    function = given.get("function")
    function = function if isinstance(function, dict) else given
    number = given.get("id")
    ident = number if isinstance(number, str) else str(number) if type(number) is int else ""
    called = {"name": _text(function.get("name")), "arguments": _arguments(function.get("arguments"))}
    return {"id": ident, "type": "function", "function": called}


def _arguments(given: Any) -> str:
    """The arguments as JSON text: an object as it is, none as an empty object, JSON within JSON once unpacked."""
    if isinstance(given, str) and given.strip():
        try:
            inner = json.loads(given) if given.lstrip().startswith('"') else None
            return inner if isinstance(inner, str) and isinstance(json.loads(inner), dict) else given
        except (ValueError, RecursionError):
            return given
    if given is None or isinstance(given, str):
        return "{}"
    return json.dumps(given, ensure_ascii=False)


def _content(given: Any) -> str:
    """The text of a content: a text, or the text parts of a list."""
    parts = given if isinstance(given, list) else [given]
    texts = (
        part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part for part in parts
    )
    return "".join(each for each in texts if isinstance(each, str))


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


def once_each(message: Message) -> tuple[Message, str]:
    """The message with one call: equal ones count once, and of different ones the first; and what was left out."""
    calls = message.get("tool_calls") or []
    if len(calls) < 2:
        return message, ""
    distinct = {json.dumps([call["function"]["name"], _parsed(call)], sort_keys=True) for call in calls}
    noted = f"{len(calls)} equal calls" if len(distinct) == 1 else f"{len(calls)} calls, the first counts"
    return message | {"tool_calls": calls[:1]}, noted


def _parsed(call: dict[str, Any]) -> Any:
    try:
        return json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return call["function"]["arguments"]
