"""Checks what a chat template makes of whole episodes, before anything is bought or trained.

In: a tokenizer, the tools. Out: nothing; Stop with what the template would do to the format that the student learns.
"""

from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.example import REPLY, THOUGHTS, example_episode
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import (
    CLOSING,
    as_read,
    chat_format,
    parse,
    prompt_ids,
    row_ids,
    training_row,
    written_row,
)
from apprentice.tasks.episodes.thinking import OTHER, THOUGHT, thinking_of, without_thinking
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.tokenizer import CHOOSE
from apprentice.tasks.reporting.errors import Stop

OTHER_MODE = {"text": "native", "native": "text"}


def check_template(model: str, tokenizer: Any, environment: Player) -> None:
    """Raises Stop when a student with this chat template would learn another format than it is evaluated in."""
    thinking = thinking_of(tokenizer)
    if thinking and thinking.mode == "text" and environment.takes_text:
        raise Stop(
            "student.thinking: text writes the thought as text, and this environment takes a text for an answer.",
            "Set student.thinking: native, or off.",
        )
    if fault := fault_of(tokenizer, environment.schemas):
        remedy = f"Set student.thinking: off, or {OTHER_MODE[thinking.mode]}. " if thinking else ""
        raise Stop(f"The chat template of {model} {fault}", remedy + CHOOSE)


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
    thinking = thinking_of(tokenizer)
    if thinking and thinking.mode == "native" and not has_switch(tokenizer, tools):
        return "has no block of its own for a thought, which student.thinking: native needs."
    messages = example_episode(function, THOUGHTS if thinking else ("", ""))
    *_, call_turn, reply = messages
    called = call_turn["tool_calls"][0]["function"]
    ids = row_ids(tokenizer, training_row(messages, tools))
    if tokenizer.decode(ids).count(REPLY) != 2:
        return "omits the tools' replies."
    for place in (2, 4, 6):
        prefix = prompt_ids(tokenizer, messages[:place], tools)
        turn = row_ids(tokenizer, written_row([*messages, CLOSING][: place + 1], tools))[len(prefix) :]
        if ids[: len(prefix) + len(turn)] != prefix + turn:
            return "renders earlier turns differently once others follow, so SFT and GRPO would have other token ids."
        if place == 6:
            return ""
        read = parse(tokenizer, _generated(tokenizer, turn), prefix, tools)
        if thinking and (fault := _fault_of_thought(tokenizer, turn, read, messages[place], function["name"])):
            return fault
        parsed = read.get("tool_calls") or []
        if [call["function"] for call in parsed] != [called]:
            read = ", ".join(_call(call["function"]) for call in parsed) or "no call"
            return f"renders the call {_call(called)} so that TRL's parser reads {read}."
        again = prefix + _generated(tokenizer, turn) + trl_internals.reply_ids(tokenizer, [reply])
        if again != ids[: len(again)]:  # the model stops at its end token, TRL inserts the replies
            return "renders a tool's reply otherwise than TRL's GRPO inserts it, so SFT would have other token ids."
    return ""


def _generated(tokenizer: Any, turn: list[int]) -> list[int]:
    """What a model writes of a turn with a call."""
    end = chat_format(tokenizer).call_end
    return turn[: turn.index(end) + 1] if end in turn else turn


def _fault_of_thought(tokenizer: Any, turn: list[int], read: Message, given: Message, tool: str) -> str:
    """What a template does to a thought; empty where it stands once, before the call, and is read back."""
    text, thought = tokenizer.decode(turn), given[THOUGHT]
    if thought not in text:
        return f"omits the thought {thought!r} of a turn with a call."
    if text.count(thought) > 1:
        return "renders a thought twice."
    if text.index(thought) > text.index(tool):
        return "renders a thought after the call that it leads to."
    if read.get(THOUGHT) != thought:
        return f"renders the thought {thought!r} so that TRL's parser reads {read.get(THOUGHT, '')!r}."
    return ""


def has_switch(tokenizer: Any, tools: list[dict[str, Any]]) -> bool:
    """Whether a chat template renders a thought by itself, as a block of its own."""
    call = turn_of(tools[0]["function"]["name"], {}) | {THOUGHT: THOUGHTS[0], OTHER: THOUGHTS[0]}
    messages = as_read(tokenizer, [{"role": "user", "content": "user"}, call])
    text = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, chat_template=without_thinking(tokenizer.chat_template)
    )
    return THOUGHTS[0] in text


def _call(function: dict[str, Any]) -> str:
    return f"{function['name']}({function['arguments']!r})"[:120]
