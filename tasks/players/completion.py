"""What is looked at of a chat completion: the first choice's message, and the usage as it is.

In: the endpoint's JSON. Out: a message with only what belongs to a conversation.
Why not the SDK's own types: endpoints differ in all the rest, and what is not of this shape is asked for again.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from apprentice.tasks.episodes.episode import Message


def _is_text(text: str) -> str:
    """Half a surrogate, which JSON can spell, is no text: it can be neither written down nor sent."""
    text.encode()
    return text


_Text = Annotated[str, AfterValidator(_is_text)]


class _Function(BaseModel):
    name: _Text = ""
    arguments: _Text = ""


class _Call(BaseModel):
    id: _Text | None = None
    function: _Function = _Function()


class _Said(BaseModel):
    content: _Text | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Said = _Said()


class Completion(BaseModel):
    """One chat completion."""

    choices: list[_Choice] | None = None
    usage: Any = None
    """Whatever the endpoint says of it; see `usage_of`."""

    @classmethod
    def read(cls, raw: Any) -> "Completion":
        """An answer that is not of this shape is as good as none: it is asked for again."""
        try:
            return cls.model_validate(raw)
        except ValidationError:
            return cls(usage=raw.get("usage") if isinstance(raw, dict) else None)

    def message(self) -> Message:
        """The first choice's message, with only what belongs to a conversation; empty when there is none."""
        said = self.choices[0].message if self.choices else _Said()
        message: Message = {"role": "assistant", "content": said.content or ""}
        calls = [
            {"id": call.id or "", "type": "function", "function": call.function.model_dump()}
            for call in said.tool_calls or []
        ]
        return message | ({"tool_calls": calls} if calls else {})
