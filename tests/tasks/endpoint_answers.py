"""Endpoints as public bug reports describe them: OpenAI, Azure, OpenRouter, Anthropic, Gemini, DeepSeek, Mistral, Groq,
xAI, Ollama, vLLM, SGLang, llama.cpp and LiteLLM. Each answers every question right, in its own way.
"""

import json
import re
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Said = Any
"""An answer, as `Endpoint` takes it."""


def question(body: Json) -> str:
    return next(each["content"] for each in body["messages"] if each["role"] == "user")


def right(body: Json) -> tuple[str, Json]:
    """The right call: echo says the question; wordle tries its candidates one after the other."""
    if body["tools"][0]["function"]["name"] == "echo":
        return "echo", {"message": question(body)}
    words = re.findall("[a-z]{5}", question(body).partition("The secret is one of: ")[2])
    return "guess", {"word": words[min(sum(each["role"] == "assistant" for each in body["messages"]), len(words) - 1)]}


def call(body: Json, **more: Any) -> Json:
    name, arguments = right(body)
    given = {"id": f"call_{len(body['messages'])}", "type": "function"}
    return given | {"function": {"name": name, "arguments": json.dumps(arguments)}} | more


def answer(message: Json, finish: str = "tool_calls", **more: Any) -> Said:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None} | message}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return 200, {}, whole | {"usage": usage(120, 12)} | more


def usage(prompt: int, completion: int, total: int | None = None, **details: Any) -> Json:
    whole = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": whole} | details


def good(body: Json) -> Said:
    return answer({"tool_calls": [call(body)]})


def error(http: int, message: str, **more: Any) -> Said:
    return http, {}, {"error": {"message": message} | more}


def with_function(**changes: Any) -> Callable[[Json], Said]:
    """Right calls in another form: each change is made of the right arguments."""

    def said(body: Json) -> Said:
        name, arguments = right(body)
        function = {"name": name} | {key: change(name, arguments) for key, change in changes.items()}
        return answer({"tool_calls": [call(body, function=function)]})

    return said


def refuses(name: str, said: Said, when: Callable[[Any], bool] = lambda _: True) -> Callable[[Json], Said]:
    """Refuses a field of the request."""
    return lambda body: said if name in body and when(body[name]) else good(body)


def refuses_both(body: Json) -> Said:
    for name in ("temperature", "parallel_tool_calls"):
        if name in body:
            return error(400, f"Unsupported parameter: '{name}' is not supported with this model.", param=name)
    return good(body)


def needs_back(field_of_message: Callable[[Json], Any], message: Callable[[Json], Json], said: Said):
    """Refuses a conversation in which an assistant's message lacks what the endpoint gave."""

    def answered(body: Json) -> Said:
        turns = [each for each in body["messages"] if each["role"] == "assistant"]
        return answer(message(body)) if all(field_of_message(each) for each in turns) else said

    return answered


class First:
    """Says one thing to the first few requests, or to every nth of them, and is right from then on."""

    def __init__(self, said: Said, times: int = 0, after: int = 0, every: int = 0):
        self._said, self._times, self._after, self._every = said, times, after, every
        self._count = 0

    def __call__(self, body: Json) -> Said:
        self._count += 1
        if self._every:
            bad = self._count % self._every == 2
        else:
            bad = self._after < self._count and (not self._times or self._count <= self._after + self._times)
        return good(body) if not bad else self._said(body) if callable(self._said) else self._said


class OneQuestion:
    """Refuses one question, the nth that it hears."""

    def __init__(self, said: Said, place: int = 1):
        self._said, self._place = said, place
        self._heard: list[str] = []

    def __call__(self, body: Json) -> Said:
        if question(body) not in self._heard:
            self._heard.append(question(body))
        refused = len(self._heard) >= self._place and question(body) == self._heard[self._place - 1]
        return self._said if refused else good(body)
