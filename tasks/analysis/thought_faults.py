"""What is wrong with a thought: why a student should not learn it.

In: an assistant's turn with a thought, the tools, the student's tokenizer. Out: the cause, as the filter counts it.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from apprentice.tasks.episodes.notations import notation_of, without_thoughts
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, thinking_of, tokens_of

MARKED = "call or special token in the thought"
CUT = "thought cut off"
LONG = "thought over its budget"
OTHER_RESULT = "thought with another result than the call"
REPEATS = "thought that repeats itself"
CAUSES = (CUT, MARKED, LONG, OTHER_RESULT, REPEATS)

REPEATED_TOKENS = 4
"""Length of the runs of tokens that count as repeated."""
MOST_REPEATED = 0.5
"""Share of such runs that were there before, above which a thought repeats itself."""
STATED = re.compile(
    r"(?:=|\b(?:is|are|result|answer|gives|equals|makes)\b)[^\w\n.,;-]*(-?\d[\d,]*(?:\.\d+)?)", re.IGNORECASE
)
"""A result that is stated in words or by an equation."""
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Check = Callable[[dict[str, Any], list[dict[str, Any]]], str | None]
"""The cause for which a turn's thought is dropped, by the turn and the tools; None for one that may be learned."""


def check_of(tokenizer: Any = None) -> Check:
    """The check of turns. Without the student's tokenizer, what is counted in tokens is not checked."""

    def check(turn: dict[str, Any], tools: list[dict[str, Any]]) -> str | None:
        thought = turn.get(THOUGHT) or ""
        if turn.get(CUT_OFF):
            return CUT
        if not thought:
            return None
        if without_thoughts(thought) != thought or notation_of(thought, tools) or _has_special(tokenizer, thought):
            return MARKED
        if tokenizer is not None and _is_long(tokenizer, thought):
            return LONG
        if says_other_result(thought, turn.get("tool_calls") or []):
            return OTHER_RESULT
        return REPEATS if tokenizer is not None and _repeats(tokenizer, thought) else None

    return check


def says_other_result(thought: str, calls: list[dict[str, Any]]) -> bool:
    """Whether the last result that a thought states is another number than the call hands in. False where the thought
    states none, and where the call has several arguments or no number."""
    stated = STATED.findall(thought)
    try:
        given = json.loads(calls[-1]["function"]["arguments"]) if calls else None
    except (ValueError, TypeError):
        return False
    handed = [str(each) for each in given.values()] if isinstance(given, dict) else []
    if not stated or len(handed) != 1 or not NUMBER.fullmatch(handed[0].strip()):
        return False
    return _number(stated[-1]) != _number(handed[0])


def _number(text: str) -> float:
    return float(text.strip().replace(",", ""))


def _has_special(tokenizer: Any, thought: str) -> bool:
    if tokenizer is None:
        return False
    return any(token.special and token.content in thought for token in tokenizer.added_tokens_decoder.values())


def _is_long(tokenizer: Any, thought: str) -> bool:
    thinking = thinking_of(tokenizer)
    return thinking is not None and tokens_of(tokenizer, thought) > thinking.max_tokens


def _repeats(tokenizer: Any, thought: str) -> bool:
    from trl.rewards import get_repetition_penalty_reward

    ids = tokenizer.encode(thought, add_special_tokens=False)
    (penalty,) = get_repetition_penalty_reward(REPEATED_TOKENS, max_penalty=-1.0)([ids])
    return penalty < -MOST_REPEATED
