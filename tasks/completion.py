"""What is looked at of a chat completion: the first choice's message, and the usage.

In: the endpoint's JSON. Out: a message with only what belongs to a conversation.
Why not the SDK's own types: endpoints differ in all the rest, and what is not of this shape is asked for again.
"""

from typing import Any

from pydantic import BaseModel, ValidationError

from apprentice.tasks.episode import Message


class _Function(BaseModel):
    name: str = ""
    arguments: str = ""


class _Call(BaseModel):
    id: str | None = None
    function: _Function = _Function()


class _Said(BaseModel):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Said = _Said()


class _PromptDetails(BaseModel):
    cached_tokens: int | None = None


class _CompletionDetails(BaseModel):
    reasoning_tokens: int | None = None


class Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    @property
    def cached(self) -> int:
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0

    @property
    def reasoning(self) -> int:
        return (self.completion_tokens_details and self.completion_tokens_details.reasoning_tokens) or 0


class Completion(BaseModel):
    """One chat completion."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None

    @classmethod
    def read(cls, raw: Any) -> "Completion":
        """An answer that is not of this shape is as good as none: it is asked for again."""
        try:
            return cls.model_validate(raw)
        except ValidationError:
            return cls()

    def message(self) -> Message:
        """The first choice's message, with only what belongs to a conversation; empty when there is none."""
        said = self.choices[0].message if self.choices else _Said()
        message: Message = {"role": "assistant", "content": said.content or ""}
        calls = [
            {"id": call.id or "", "type": "function", "function": call.function.model_dump()}
            for call in said.tool_calls or []
        ]
        return message | ({"tool_calls": calls} if calls else {})
