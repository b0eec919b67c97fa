"""A student that thinks: how its chat template asks for a thought, and how a turn with one is read and rendered.

In: a prepared tokenizer and the recipe's `student.thinking`. Out: a tokenizer whose chat template begins with a header:
it adds the instruction to the system prompt and renders the thoughts of all turns, those of earlier ones as well.
Why in the template: TRL's trainers, our evaluation and every server render it, so all of them have the same prompt
(law 1), and every checkpoint keeps it. In a conversation a thought is `reasoning_content`, however it is rendered.
Thoughts of earlier turns are kept because GRPO appends a tool's reply to what the model wrote. A template that drops
them is refused before a run (tasks/training/template.py).
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from apprentice.tasks.episodes.notations import notation_of
from apprentice.tasks.settings.spec import ThinkingSpec

Message = dict[str, Any]

THOUGHT = "reasoning_content"
"""The field of a message that holds its thought."""
CUT_OFF = "cut_off"
"""The field of a message that is true where a thought has no end, or is longer than its budget."""
OTHER = "thinking"
"""The same field in the templates and parsers of gpt-oss and LFM2."""

HEAD = """{{#- thinking {settings} -#}}
{{%- set thinks = namespace(messages=[]) -%}}
{{%- for given in messages -%}}
{{%- set thought = given.reasoning_content if given.reasoning_content is string else '' -%}}
{{%- set content = given.content if given.content is string else {parts} -%}}
{{%- set message = dict(given, content=content) if given.content and given.content is not string else given -%}}
{{%- if loop.first and message.role == 'system' -%}}
{{%- set thinks.messages = thinks.messages + [dict(message, content=content + {instruction})] -%}}
{{%- elif message.role == 'assistant' and ({rendered_if}) -%}}
{{%- set thinks.messages = thinks.messages + [dict(message, {as_rendered})] -%}}
{{%- else -%}}
{{%- set thinks.messages = thinks.messages + [message] -%}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- set messages = thinks.messages -%}}
{{%- set enable_thinking = {switch} -%}}
{{#- end of thinking #}}
"""
PARTS = "(given.content or []) | map(attribute='text') | select('string') | join('')"
"""A message's content as text: servers pass a list of parts where a template reads one, and clients null."""
RENDERED = {
    "text": (
        "thought or message.tool_calls",
        # servers leave the line break before a call in the text beside it
        "content=(thought + content).rstrip('\\n') if message.tool_calls else thought + content, reasoning_content=''",
    ),
    "native": (
        "thought",  # in which servers leave the line breaks around it
        f"{OTHER}=thought.strip('\\n'), reasoning_content=thought.strip('\\n')",
    ),
}
"""By mode: which of the assistant's messages are rendered otherwise, and how."""
HEADED = re.compile(r"\A\{#- thinking (.*?) -#\}.*?\{#- end of thinking #\}\n?", re.DOTALL)


def think(tokenizer: Any, spec: ThinkingSpec | None) -> Any:
    """Gives a prepared tokenizer the header of `spec`, in place of an earlier one; None takes it away. In place."""
    plain = without_thinking(tokenizer.chat_template)
    tokenizer.chat_template = plain if spec is None else _head(spec) + plain
    return tokenizer


def thinking_of(tokenizer: Any) -> ThinkingSpec | None:
    """How a student thinks; None for one that answers at once."""
    template = tokenizer.chat_template
    return thinking_in(template) if isinstance(template, str) else None


@lru_cache
def thinking_in(template: str) -> ThinkingSpec | None:
    """What a chat template's header says; None without one."""
    found = HEADED.match(template)
    return ThinkingSpec.model_validate_json(found[1]) if found else None


def thinking_at(checkpoint: Path) -> ThinkingSpec | None:
    """How the student in a checkpoint's folder thinks; None for one that answers at once, or without a template."""
    file = checkpoint / "chat_template.jinja"
    return thinking_in(file.read_text()) if file.exists() else None


def turn_tokens(answer: int, thinking: ThinkingSpec | None) -> int:
    """The most tokens of a turn whose answer has at most so many: those of a thought come on top."""
    return answer + (thinking.max_tokens if thinking else 0)


def without_thinking(template: str) -> str:
    """The chat template without its header."""
    return HEADED.sub("", template)


def instructed(content: str, instruction: str) -> str:
    """A system prompt with the instruction, as the header adds it."""
    return f"{content}\n\n{instruction}" if instruction else content


def _head(spec: ThinkingSpec) -> str:
    rendered_if, as_rendered = RENDERED[spec.mode]
    return HEAD.format(
        settings=json.dumps(spec.model_dump()).replace("#", "\\u0023"),  # no end of the comment
        parts=PARTS,
        instruction=_literal(instructed("", spec.instruction)),
        rendered_if=rendered_if,
        as_rendered=as_rendered,
        switch="true" if spec.mode == "native" else "false",
    )


def _literal(text: str) -> str:
    """The text as a string literal of Jinja, which reads Python's escapes."""
    escaped = text.encode("unicode_escape").decode("ascii").replace("'", "\\'").replace("#}", "\\x23}")
    return f"'{escaped}'"


def tokens_of(tokenizer: Any, thought: str) -> int:
    """How many tokens a thought has, without the marks of its block."""
    return len(tokenizer.encode(thought, add_special_tokens=False)) if thought else 0


def with_thought(
    tokenizer: Any, spec: ThinkingSpec, message: Message, is_whole: bool, ends: Sequence[int] = ()
) -> Message:
    """A parsed completion with its thought in one field. A thought that is cut off, or longer than its budget, has no
    call. A text beside a call is within the budget of the thought.

    Args:
        is_whole: Whether the completion ends with a token that ends a turn, or is in words after a block that ended.
        ends: Those tokens; a thought that has one has no end of its own.
    """
    given = {name: value for name, value in message.items() if name not in (THOUGHT, OTHER)}
    thought = message.get(THOUGHT) or message.get(OTHER) or ""
    if end := next(filter(thought.rstrip().endswith, map(tokenizer.decode, ([each] for each in ends))), ""):
        return cut_off(thought.rstrip().removesuffix(end))  # the turn ends within it
    calls, text = given.get("tool_calls"), given["content"]
    is_broken_off = not calls and not is_whole and not notation_of(text, [])
    if is_broken_off or (spec.mode == "text" and calls):
        thought, text = thought + text, ""
    length = tokens_of(tokenizer, thought) + (tokens_of(tokenizer, text.strip()) if calls else 0)
    if is_broken_off or length > spec.max_tokens:
        return cut_off(thought + text if calls else thought)
    given["content"] = text
    return given | ({THOUGHT: thought} if thought else {})


def cut_off(thought: str) -> Message:
    """A turn that ends within its thought, or has one over its budget."""
    return {"role": "assistant", "content": "", THOUGHT: thought, CUT_OFF: True}


def ended(message: Message) -> Message:
    """A served student's turn whose tokens were used up: without a call or a text its thought is cut off."""
    thought, content = message.get(THOUGHT, ""), message["content"]
    if message.get("tool_calls") or (thought and content.strip()):
        return message
    return cut_off(thought + content)


def is_cut_off(messages: Sequence[Message]) -> bool:
    """Whether a turn has a thought without an end, or one that is longer than its budget."""
    return any(message.get(CUT_OFF) for message in messages)


def of_student(tokenizer: Any, messages: list[Message]) -> list[Message]:
    """The messages as this student learns them: one that answers at once learns no thought."""
    if thinking_of(tokenizer) is not None or not any(THOUGHT in message for message in messages):
        return messages
    return [{name: value for name, value in message.items() if name != THOUGHT} for message in messages]
