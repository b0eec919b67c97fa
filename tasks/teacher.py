"""The teacher: an OpenAI-compatible endpoint that is asked for one tool call at a time.

In: a conversation and its tools. Out: an assistant message with valid calls, and what was spent.
The key comes from the environment variable OPENAI_API_KEY and goes nowhere but into the client.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from apprentice.tasks.episode import Message, problems
from apprentice.tasks.errors import Stop
from apprentice.tasks.specs import TeacherSpec


class TeacherFailed(Exception):
    """The teacher gave no usable turn; the episode is recorded as failed at this boundary."""


@dataclass
class Usage:
    """The tokens that an episode took from the teacher, malformed answers included."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, usage: Any) -> None:
        if usage is None:
            return
        self.prompt_tokens += usage.prompt_tokens or 0
        self.completion_tokens += usage.completion_tokens or 0
        self.cached_tokens += getattr(usage.prompt_tokens_details, "cached_tokens", None) or 0
        self.reasoning_tokens += getattr(usage.completion_tokens_details, "reasoning_tokens", None) or 0


@dataclass
class Spent:
    """What an episode took from the teacher."""

    attempts: int = 0
    """Requests, those for the same turn again included."""
    asked_again: list[str] = field(default_factory=list)
    """Why answers were asked for again."""
    usage: Usage = field(default_factory=Usage)


# Model families and how they want to be asked; the first prefix that fits counts.
# https://platform.openai.com/docs/guides/reasoning: reasoning models take max_completion_tokens and no temperature.
FAMILIES: list[tuple[str, str, bool]] = [
    ("gpt-5", "max_completion_tokens", False),
    ("o1", "max_completion_tokens", False),
    ("o3", "max_completion_tokens", False),
    ("o4", "max_completion_tokens", False),
    ("", "max_tokens", True),
]


class Teacher:
    """A client of the endpoint, safe to share between threads."""

    def __init__(self, spec: TeacherSpec, base_url: str | None, asks: int):
        from openai import OpenAI

        key = "none-needed" if spec.scripted_error_rate is not None else os.environ.get("OPENAI_API_KEY")
        if not key:
            raise Stop(
                "The teacher needs a key and OPENAI_API_KEY is not set.",
                "Set it in the environment and run again.",
            )
        self._client = OpenAI(api_key=key, base_url=base_url, timeout=spec.timeout, max_retries=5)
        self._asks = asks
        _, limit, takes_temperature = next(family for family in FAMILIES if spec.model.startswith(family[0]))
        self._settings: dict[str, Any] = {"model": spec.model, limit: spec.max_tokens}
        if takes_temperature:
            self._settings["temperature"] = spec.temperature

    def reply(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent) -> Message:
        """The teacher's next message, adding to `spent`. Raises TeacherFailed, Stop."""
        for _ in range(self._asks):
            message = self._ask(messages, tools, spent)
            found = problems(message, tools)
            if len(message.get("tool_calls") or []) > 1:
                found.append("several calls")
            if not found:
                return message
            spent.asked_again += found
        raise TeacherFailed(f"no valid tool call in {self._asks} answers; the last one had: {spent.asked_again[-1]}")

    def _ask(self, messages: list[Message], tools: list[dict[str, Any]], spent: Spent) -> Message:
        import openai

        spent.attempts += 1
        try:
            answer = self._client.chat.completions.create(
                messages=messages,  # type: ignore[arg-type]
                tools=[_on_the_wire(tool) for tool in tools],  # type: ignore[arg-type]
                tool_choice="required",
                parallel_tool_calls=False,
                **self._settings,
            )
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise Stop(
                f"The teacher's endpoint refused the request with status {error.status_code}.",
                "Check OPENAI_API_KEY, teacher.model and teacher.base_url, and run again.",
            ) from None  # the response may quote the key
        except openai.APIStatusError as error:
            raise TeacherFailed(f"status {error.status_code}") from None
        except openai.APIConnectionError as error:
            raise TeacherFailed(f"no connection: {type(error).__name__}") from None
        spent.usage.add(answer.usage)
        if not answer.choices:
            return {"role": "assistant", "content": ""}
        return answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's function schema has no `return`; the student's prompt has."""
    return {**tool, "function": {name: part for name, part in tool["function"].items() if name != "return"}}
