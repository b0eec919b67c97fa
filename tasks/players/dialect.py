"""What one endpoint takes of a request, learned from what it refuses, and remembered while the process runs.

In: a request's body, a refusal that names one of its parts. Out: the body that this endpoint takes.
"""

import re
from functools import cache
from typing import Any

from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.players.refusals import Refused
from apprentice.tasks.reporting import announce

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

    def learns(self, refused: Refused, sent: dict[str, Any], own: set[str]) -> bool:
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
