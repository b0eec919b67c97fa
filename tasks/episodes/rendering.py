"""Messages to token ids, for SFT rows, GRPO prompts and evaluation alike.

In: a tokenizer from the Hub or a checkpoint, messages in OpenAI's format. Out: a tokenizer whose template is safe to
train on, rows for TRL, token ids.
Why: Qwen3's plain template drops the empty <think> block from earlier assistant turns, so an episode that is rendered
whole differs from the same episode as GRPO concatenates it. TRL's training template does not; here it replaces the
plain one once, when the student is first loaded, and travels with every checkpoint.
"""

import json
from typing import Any

from apprentice.tasks.episodes.episode import Message

TEMPLATE_ARGUMENTS = {"enable_thinking": False}
"""The chat template's arguments, the same for SFT, GRPO and evaluation."""

CLOSING = {"role": "assistant", "content": "Done."}
"""The turn after the environment ended the episode. Whoever lets a student speak again, as TRL's own loop does, gets a
short one: SFT teaches it. In our GRPO, and in an examination, the episode is over before."""


def training_row(messages: list[Message], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """An episode as a row for TRL's SFTTrainer: the whole trajectory, native tool calls, and the closing turn.

    Arguments are JSON texts: columns of an Arrow table would fill what one row lacks with nulls, and render them.
    """
    return {
        "messages": [_as_trained(message) for message in messages] + [CLOSING],
        "tools": json.dumps(tools, ensure_ascii=False),
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    }


def _as_trained(message: Message) -> Message:
    """Without the wire's ids, and with the arguments spelt as the chat template spells them."""
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
    """The token ids after which the model speaks."""
    return tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **TEMPLATE_ARGUMENTS,
    )


def row_ids(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The token ids of a training row, as SFTTrainer makes them."""
    return tokenizer.apply_chat_template(
        row["messages"],
        tools=json.loads(row["tools"]),
        tokenize=True,
        return_dict=False,
        **row["chat_template_kwargs"],
    )


def parse(tokenizer: Any, ids: list[int], prefix: list[int], tools: list[dict[str, Any]]) -> Message:
    """What the model said, by the parser that GRPO uses; a broken tool call comes back as plain content."""
    from trl.chat_template_utils import parse_response

    try:
        return parse_response(tokenizer, ids, prefix=prefix, tools=list(tools))
    except RecursionError:  # a thousand brackets within one another; TRL catches what else a call can be broken by
        return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
