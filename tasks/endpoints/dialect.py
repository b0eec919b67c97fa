"""How an endpoint is spoken to: the request that it takes, the answer that it gives, the key that it needs.

In: a request's body, what the endpoint refused of it, its answer. Out: the body as this endpoint takes it, remembered
while the process runs; a message, read tolerantly of its form and strictly of its content. The key comes from an
environment variable or a Prefect Secret block; no recipe holds one.
"""

import json
import os
import re
from functools import cache
from typing import Any, NamedTuple

from apprentice.tasks.endpoints.refusals import RefusedRequest
from apprentice.tasks.episodes.record import Message, arguments_of
from apprentice.tasks.episodes.texts import is_broken, read_json
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.endpoint import TeacherSpec

LIMITS = ("max_tokens", "max_completion_tokens")
OPTIONAL = ("temperature", "parallel_tool_calls", "tool_choice", "stream_options", "stream", "seed", "ask", "strict")
"""Parts that may be left out or said otherwise; the limit is renamed, and never left out."""
STANDARD = {"role", "content", "tool_calls", "tool_call_id", "name", "function_call"}
WRONG_VALUE = re.compile(
    r"too (?:large|high|big|small)|at most|less than|greater than|maximum (?:value|allowed)|exceed"
)

WANTS_STREAM = re.compile(r"stream (?:mode|parameter|=)|only stream|must.{0,20}stream")


class Dialect:
    """The changes for one endpoint and model.

    Attributes:
        changes: What is sent otherwise, by parameter, in words.
    """

    def __init__(self) -> None:
        self.changes: dict[str, str] = {}
        self._without: set[str] = set()
        self._without_fields: set[str] = set()
        self._limit = LIMITS[0]
        self._choice: str | None = None
        self.stream: bool | None = None

    def applied(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as this endpoint takes it."""
        said = {name: value for name, value in body.items() if name not in self._without}
        for name in LIMITS:
            if name in said and name != self._limit and self.changes.get("limit"):
                said[self._limit] = said.pop(name)
        if self._choice and said.get("tool_choice") == "required":
            said["tool_choice"] = self._choice
        if self.stream is False:
            said.pop("stream", None)
            said.pop("stream_options", None)
        elif self.stream:
            said["stream"] = True
        if self._without_fields:
            said["messages"] = [self._plain(each) for each in said["messages"]]
        return said

    def _plain(self, message: Message) -> Message:
        return {name: value for name, value in message.items() if name not in self._without_fields}

    def learns(self, refused: RefusedRequest, sent: dict[str, Any], own: set[str]) -> bool:
        """Whether the refusal names a part that can be said otherwise; if so, the next request is.

        Args:
            sent: The body that was refused.
            own: Parts that the recipe asks for (`teacher.request`), which are not taken back silently.
        """
        text = f"{refused.param} {refused.text}"
        if "stream" not in sent and WANTS_STREAM.search(text):
            return self._learn("stream", "answers are streamed", stream=True)
        fields = {name for message in sent["messages"] for name in message} - STANDARD
        named = [name for name in (*LIMITS, *OPTIONAL) if name in sent and name not in own and _names(text, name)]
        named.sort(key=lambda name: (name != refused.param, text.find(name)))
        for name in named:
            if name in LIMITS:
                other = LIMITS[1 - LIMITS.index(name)]
                if WRONG_VALUE.search(text) or "limit" in self.changes:
                    continue
                self._limit = other
                return self._learn("limit", f"{other} in place of {name}")
            if name == "tool_choice" and self._choice is None and sent[name] == "required":
                self._choice = "auto"
                return self._learn(name, "tool_choice auto in place of required")
            if name == "stream":
                return self._learn(name, "answers are not streamed", stream=False)
            self._without.add(name)
            return self._learn(name, f"without {name}")
        for name in sorted(fields):
            if _names(text, name):
                self._without_fields.add(name)
                return self._learn(name, f"messages go back without {name}")
        return False

    def _learn(self, name: str, words: str, stream: bool | None = None) -> bool:
        if stream is not None:
            if self.stream is not None:
                return False
            self.stream = stream
        self.changes[name] = words
        announce.warn(f"The teacher's endpoint refused a parameter. From now on: {words}.")
        return True


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", text) is not None


@cache
def dialect_of(url: str, model: str) -> Dialect:
    """The dialect of an endpoint's model, shared by all clients of this process."""
    return Dialect()


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
    message: Message = {"role": "assistant", "content": content_text(raw.get("content"))}
    whole = message | ({"tool_calls": calls} if calls else {})
    if is_broken(whole):  # a lone surrogate, which JSON can express and UTF-8 cannot encode
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
        inner = read_json(given) if given.lstrip().startswith('"') else None
        return inner if isinstance(inner, str) and isinstance(read_json(inner), dict) else given
    if given is None or isinstance(given, str):
        return "{}"
    return json.dumps(given, ensure_ascii=False)


def content_text(given: Any) -> str:
    """The text of a content: a text, or the text parts of a list."""
    parts = given if isinstance(given, list) else [given]
    texts = (
        part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part for part in parts
    )
    return "".join(each for each in texts if isinstance(each, str))


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


def once_each(message: Message) -> tuple[Message, str]:
    """The message with one call: equal ones count once, and of different ones the first; and the others."""
    calls = message.get("tool_calls") or []
    if len(calls) < 2:
        return message, ""
    distinct = {json.dumps([call["function"]["name"], arguments_of(call)], sort_keys=True) for call in calls}
    noted = f"{len(calls)} equal calls" if len(distinct) == 1 else f"{len(calls)} calls, the first counts"
    return message | {"tool_calls": calls[:1]}, noted


def as_given(messages: list[Message], raw: dict[int, dict[str, Any]]) -> list[Message]:
    """The conversation as the endpoint gets it: its own messages as it gave them, with the calls that counted."""
    given: list[Message] = []
    idents: dict[str, Any] = {}
    for place, message in enumerate(messages):
        own = raw.get(place)
        if message["role"] == "assistant" and own:
            calls = own.get("tool_calls")
            calls = [calls] if isinstance(calls, dict) else [each for each in calls or [] if isinstance(each, dict)]
            counted = message.get("tool_calls") or []
            calls = [
                call | {"id": call.get("id") or kept_call["id"]}
                for call, kept_call in zip(calls, counted, strict=False)
            ]
            idents = {kept_call["id"]: call["id"] for call, kept_call in zip(calls, counted, strict=False)}
            given.append({"role": "assistant"} | own | ({"tool_calls": calls} if calls else {}))
        elif message["role"] == "tool" and given[-1].get("function_call") and not given[-1].get("tool_calls"):
            given.append({"role": "function", "name": message["name"], "content": message["content"]})
        elif message["role"] == "tool" and "tool_call_id" in message:
            ident = message["tool_call_id"]
            given.append(message | {"tool_call_id": idents.get(ident, ident)})
        else:
            given.append(message)
    return given


def place_of_key(spec: TeacherSpec) -> str:
    """Where the endpoint's API key is."""
    return f"the Prefect Secret block {spec.key_block}" if spec.key_block else spec.key_variable


def read_key(spec: TeacherSpec) -> str:
    """The endpoint's API key, without spaces and line breaks at its ends. Raises Stop when there is none."""
    where = place_of_key(spec)
    given = _read_key(spec)
    key = given.strip()
    if key != given:
        announce.say(f"The key in {where} had spaces or a line break at its ends; they are left out.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Stop(
            f"The key in {where} holds a space, a line break or another character that no key has.",
            f"Set {where} again.",
        )
    return key


def _read_key(spec: TeacherSpec) -> str:
    if spec.key_block is not None:
        from prefect.blocks.system import Secret

        try:
            return str(Secret.load(spec.key_block, _sync=True).get())  # type: ignore[call-arg, union-attr]
        except ValueError:
            raise Stop(
                f"There is no Prefect Secret block named {spec.key_block}.",
                "Create it in Prefect's interface, or remove teacher.key_block and set OPENAI_API_KEY.",
            ) from None
    key = os.environ.get(spec.key_variable)
    if not key or not key.strip():
        raise Stop(
            f"The endpoint needs a key and {spec.key_variable} is not set.",
            "Set it in the environment (any text for an endpoint without keys) and run again.",
        )
    return key
