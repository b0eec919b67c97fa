"""Renders messages to token ids, the same way for SFT rows, GRPO prompts and evaluation.

In: a prepared tokenizer, messages in OpenAI's format. Out: rows for TRL, token ids, parsed completions.
Why: Qwen3's plain template drops the empty <think> block of earlier assistant turns, so an episode rendered as a whole
differs from the same episode as GRPO concatenates it. TRL's training template does not; it replaces the plain one when
the student is first loaded, and every checkpoint keeps it.
"""

import json
from typing import Any

from apprentice.tasks.episodes.episode import Message

TEMPLATE_ARGUMENTS = {"enable_thinking": False}
"""The chat template's arguments, the same for SFT, GRPO and evaluation."""

CLOSING = {"role": "assistant", "content": "Done."}
"""The turn after the environment ended the episode. SFT trains it, so that loops that generate one more turn, such as
TRL's own, get a short one. Our GRPO and evaluation end the episode before it."""


def training_row(messages: list[Message], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """An episode as a row for TRL's SFTTrainer: the whole trajectory, native tool calls, and the closing turn.

    Arguments are JSON text: as Arrow structures, missing ones would become nulls and be rendered.
    """
    return {
        "messages": [_as_trained(message) for message in messages] + [CLOSING],
        "tools": json.dumps(tools, ensure_ascii=False),
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    }


def _as_trained(message: Message) -> Message:
    """The message without call ids, with its arguments formatted as in the chat template."""
    kept: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {"type": "function", "function": {"name": call["function"]["name"], "arguments": _spelt(call)}}
            for call in message["tool_calls"]
        ]
    return kept


def _spelt(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps(arguments, ensure_ascii=False)


def prompt_ids(tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
    """The token ids of the prompt, generation prompt included."""
    return tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **TEMPLATE_ARGUMENTS,
    )


def row_ids(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The token ids of a training row, as SFTTrainer computes them."""
    return tokenizer.apply_chat_template(
        row["messages"],
        tools=json.loads(row["tools"]),
        tokenize=True,
        return_dict=False,
        **row["chat_template_kwargs"],
    )


def parse(tokenizer: Any, ids: list[int], prefix: list[int], tools: list[dict[str, Any]]) -> Message:
    """Parses a completion with GRPO's parser; a malformed tool call becomes plain content."""
    from trl.chat_template_utils import parse_response

    try:
        return parse_response(tokenizer, ids, prefix=prefix, tools=list(tools))
    except RecursionError:  # deeply nested brackets; TRL catches all other errors
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
