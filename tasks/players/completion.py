"""Reads the parts of a chat completion that apprentice uses: the first choice's message, and the usage.

In: the endpoint's JSON. Out: a message with only the fields of a conversation.
Why not the SDK's types: endpoints differ in all other fields. An answer of another shape is requested again.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from apprentice.tasks.episodes.episode import Message


def _is_text(text: str) -> str:
    """Rejects lone surrogates, which JSON can express but UTF-8 cannot encode."""
    text.encode()
    return text


_Text = Annotated[str, AfterValidator(_is_text)]


class _Function(BaseModel):
    name: _Text = ""
    arguments: _Text = ""


class _Call(BaseModel):
    id: _Text | None = None
    function: _Function = _Function()


class _Message(BaseModel):
    content: _Text | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message = _Message()


class Completion(BaseModel):
    choices: list[_Choice] | None = None
    usage: Any = None
    """The endpoint's usage, unchecked; see `usage_of`."""

    @classmethod
    def read(cls, raw: Any) -> "Completion":
        """Parses an answer; one of another shape becomes a completion without choices."""
        try:
            return cls.model_validate(raw)
        except ValidationError:
            return cls(usage=raw.get("usage") if isinstance(raw, dict) else None)

    def message(self) -> Message:
        """The first choice's message, with only the fields of a conversation; empty when there is none."""
        first = self.choices[0].message if self.choices else _Message()
        message: Message = {"role": "assistant", "content": first.content or ""}
        calls = [
            {"id": call.id or "", "type": "function", "function": call.function.model_dump()}
            for call in first.tool_calls or []
        ]
        return message | ({"tool_calls": calls} if calls else {})
