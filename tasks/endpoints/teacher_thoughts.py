"""A teacher's thoughts: how they are asked for, read from an endpoint's answer, and measured.

In: a conversation, the recipe's `teacher.thoughts`, an endpoint's own message. Out: the conversation as it is sent; a
message with its thought in `reasoning_content`.
"""

import re
from typing import Any

from apprentice.tasks.endpoints.dialect import content_text
from apprentice.tasks.episodes.notations import split_thought
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.texts import is_broken
from apprentice.tasks.episodes.thinking import THOUGHT, instructed
from apprentice.tasks.settings.endpoint import ThoughtsSpec

TOO_LONG = "a thought over its budget"
PIECE = re.compile(r"\d|[^\W\d_]{1,4}|[^\w\s]|_")
"""About a token of a small student, which a teacher's tokens are not: a digit, four letters, a mark."""


def asked_to_think(messages: list[Message], thoughts: ThoughtsSpec, shorter: bool) -> list[Message]:
    """The conversation with the recipe's instruction in its system prompt, as the student's chat template adds it."""
    words = max((thoughts.max_tokens or 1) // 2, 1)
    again = f"Be shorter: write at most {words} words before the call." if shorter else ""
    instruction = " ".join(filter(None, (thoughts.instruction, again)))
    first, *others = messages
    return [first | {"content": instructed(first["content"], instruction)}, *others]


def is_too_long(message: Message, thoughts: ThoughtsSpec) -> bool:
    """Whether a thought is longer than the recipe allows, by an estimate of its tokens."""
    most = thoughts.max_tokens
    return most is not None and len(PIECE.findall(message.get(THOUGHT, ""))) > most


def with_its_thought(message: Message, raw: dict[str, Any]) -> Message:
    """The message with the thought of the endpoint's own one in `reasoning_content`, and without it in its text."""
    thought, content = split_thought(raw)
    if not thought or is_broken(thought):
        return message
    return message | {"content": content_text(content), THOUGHT: thought}


def letters_of_thought(messages: list[Message]) -> int:
    """Characters of an episode's thoughts."""
    return sum(len(message.get(THOUGHT, "")) for message in messages)
