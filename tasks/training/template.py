"""Checks what a chat template makes of whole episodes, before anything is bought or trained.

In: a tokenizer, the tools. Out: nothing; Stop with what the template would do to the format that the student learns.
"""

from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import Message
from apprentice.tasks.episodes.example import REPLY, example_episode
from apprentice.tasks.episodes.rendering import (
    CLOSING,
    chat_format,
    parse,
    prompt_ids,
    row_ids,
    training_row,
    written_row,
)
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.tokenizer import CHOOSE
from apprentice.tasks.reporting.errors import Stop


def check_template(model: str, tokenizer: Any, environment: Player) -> None:
    """Raises Stop when a student with this chat template would learn another format than it is evaluated in."""
    tools = environment.schemas
    if fault := fault_of(tokenizer, tools):
        raise Stop(f"The chat template of {model} {fault}", CHOOSE)


def fault_of(tokenizer: Any, tools: list[dict[str, Any]]) -> str:
    """The fault, as the end of a sentence about the template; empty without one."""
    for tool in tools:
        try:
            if fault := _fault(tokenizer, tool["function"], tools):
                return fault
        except Exception as error:  # a template may raise anything
            if failed_import(error):
                raise
            return f"fails on an episode with calls: {' '.join(str(error).split())[:200]}"
    return ""


def _fault(tokenizer: Any, function: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    messages = example_episode(function)
    *_, call_turn, reply = messages
    called = call_turn["tool_calls"][0]["function"]
    ids = row_ids(tokenizer, training_row(messages, tools))
    if tokenizer.decode(ids).count(REPLY) != 2:
        return "omits the tools' replies."
    for place in (2, 4, 6):
        prefix, turn = _turn(tokenizer, [*messages, CLOSING], tools, place)
        if ids[: len(prefix) + len(turn)] != prefix + turn:
            return "renders earlier turns differently once others follow, so SFT and GRPO would have other token ids."
        if place == 6:
            return ""
        parsed = parse(tokenizer, turn, prefix, tools).get("tool_calls") or []
        if [call["function"] for call in parsed] != [called]:
            read = ", ".join(_call(call["function"]) for call in parsed) or "no call"
            return f"renders the call {_call(called)} so that TRL's parser reads {read}."
        if (again := _concatenated(tokenizer, prefix, turn, [reply])) != ids[: len(again)]:
            return "renders a tool's reply otherwise than TRL's GRPO inserts it, so SFT would have other token ids."
    return ""


def _turn(
    tokenizer: Any, messages: list[Message], tools: list[dict[str, Any]], place: int
) -> tuple[list[int], list[int]]:
    """The prompt of an assistant's turn, and what the template renders of the turn."""
    prefix = prompt_ids(tokenizer, messages[:place], tools)
    return prefix, row_ids(tokenizer, written_row(messages[: place + 1], tools))[len(prefix) :]


def _concatenated(tokenizer: Any, prefix: list[int], turn: list[int], replies: list[Message]) -> list[int]:
    """The ids of GRPO after a turn: the model stops at its end token, TRL inserts the replies."""
    end = chat_format(tokenizer).call_end
    generated = turn[: turn.index(end) + 1] if end in turn else turn
    return prefix + generated + trl_internals.reply_ids(tokenizer, replies)


def _call(function: dict[str, Any]) -> str:
    return f"{function['name']}({function['arguments']!r})"[:120]
