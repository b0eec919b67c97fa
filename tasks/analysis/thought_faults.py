"""What is wrong with a thought: why a student should not learn it.

In: an assistant's turn with a thought, the tools, the student's tokenizer. Out: the cause, as the filter counts it.
"""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from apprentice.tasks.episodes.notations import notation_of, without_thoughts
from apprentice.tasks.episodes.rendering import may_lack_thoughts
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, thinking_of, tokens_of

MARKED = "call or special token in the thought"
CUT = "thought cut off"
LONG = "thought over its budget"
OTHER_RESULT = "thought with another result than the call"
REPEATS = "thought that repeats itself"
MISSING = "no thought, which the chat template renders otherwise than it is asked for"

REPEATED_WORDS = 4
"""Length of the runs of words that count as repeated."""
MOST_REPEATED = 0.4
"""Share of such runs that were there before, above which a thought repeats itself."""
LOOP = re.compile(r"(\S[^\n]{2,79}?\s)\1{4,}\S*\Z", re.DOTALL)
"""A thought that ends in the same words, five times or more."""
WORD = re.compile(r"\w+|[^\w\s]")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
STATED = re.compile(
    r"(?:=|→|->|⇒|\\boxed\{|\b(?:is|are|result|answer|sum|total|difference|product|gives|equals|makes|should be)\b)"
    rf"(?:\s+(?:therefore|thus|then|now|so)\b)*[^\w\n.,;-]*(?:\\boxed\{{)?({NUMBER.pattern})",
    re.IGNORECASE,
)
"""A result that is stated in words or by an equation."""
ASIDE = re.compile(
    r"\([^()]*=[^()]*\)|(?<=\S\s)(?:check|proof)[:,].*|(?<=[\w,]\s)(?:since|because|which is)\b.*", re.IGNORECASE
)
"""What follows a result and is none: a check, or its reason."""
LEFT = re.compile(rf"(?:^|[.;]\s+)({NUMBER.pattern})\s*=")
"""A result that is told before what it is the result of."""
THOUSANDS = re.compile(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))")
MARK = re.compile(r"<\|[\w:]+\|>|<\|?channel\|?>")
"""A special token of some family, by its look."""

Check = Callable[[dict[str, Any], list[dict[str, Any]]], str | None]
"""The cause for which a turn's thought is dropped, by the turn and the tools; None for one that may be learned."""


def check_of(tokenizer: Any = None) -> Check:
    """The check of turns. Without the student's tokenizer, what is counted in tokens is not checked."""

    without = None if tokenizer is None or may_lack_thoughts(tokenizer) else MISSING

    def check(turn: dict[str, Any], tools: list[dict[str, Any]]) -> str | None:
        thought = turn.get(THOUGHT) or ""
        if turn.get(CUT_OFF):
            return CUT
        if not thought:
            return None if turn.get("weight") == 0 else without
        if without_thoughts(thought) != thought or MARK.search(thought) or _has_special(tokenizer, thought):
            return MARKED
        if notation_of(thought, tools):
            return MARKED
        if tokenizer is not None and _is_long(tokenizer, thought):
            return LONG
        if says_other_result(thought, turn.get("tool_calls") or []):
            return OTHER_RESULT
        return REPEATS if _repeats(thought) else None

    return check


def says_other_result(thought: str, calls: list[dict[str, Any]]) -> bool:
    """Whether the last result that a thought states is another number than the call hands in. False where the thought
    states none or ends with the call's, and where the call has several arguments or no number."""
    plain = THOUSANDS.sub("", ASIDE.sub("", thought.replace("\u2212", "-")))
    stated = STATED.findall(plain)
    try:
        given = json.loads(calls[-1]["function"]["arguments"]) if calls else None
    except (ValueError, TypeError):
        return False
    handed = [str(each) for each in given.values()] if isinstance(given, dict) else []
    if not stated or len(handed) != 1 or not NUMBER.fullmatch(handed[0].strip()):
        return False
    result = _number(THOUSANDS.sub("", handed[0].strip()))
    results = [stated[-1], *NUMBER.findall(plain)[-1:], *LEFT.findall(plain)[-1:]]
    is_share = re.search(rf"{re.escape(stated[-1])}\s*%", plain) is not None
    return not any(result in ((number := _number(each)), number / 100 if is_share else number) for each in results)


def _number(text: str) -> Decimal:
    return Decimal(text.strip().rstrip(",").replace(",", ""))


def _has_special(tokenizer: Any, thought: str) -> bool:
    if tokenizer is None:
        return False
    tokens = [(each.content, each.special) for each in tokenizer.added_tokens_decoder.values()]
    return any((special or each[:1] + each[-1:] == "<>") and each in thought for each, special in tokens)


def _is_long(tokenizer: Any, thought: str) -> bool:
    thinking = thinking_of(tokenizer)
    return thinking is not None and tokens_of(tokenizer, thought) > thinking.max_tokens


def _repeats(thought: str) -> bool:
    words = WORD.findall(thought)
    runs = [tuple(words[at : at + REPEATED_WORDS]) for at in range(len(words) - REPEATED_WORDS + 1)]
    is_loop = LOOP.search(f"{thought.rstrip()} ") is not None
    return is_loop or (bool(runs) and 1 - len(set(runs)) / len(runs) > MOST_REPEATED)
