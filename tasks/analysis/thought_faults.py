"""What is wrong with a thought: why a student should not learn it.

In: an assistant's turn with a thought, the tools, the student's tokenizer. Out: the cause, as the filter counts it.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from apprentice.tasks.episodes.notations import notation_of, without_thoughts
from apprentice.tasks.episodes.record import arguments_of
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
STATED_TEXT = re.compile(
    r"(?:\b(answer|result|solution|output)\b[^\n\"'`“\[.;]{0,20}|=|:|→|->|⇒|\b(?:is|are|gives|makes|spells|reads|becomes)\b)\s*"
    r"(?:\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|'([^'\n]+)'(?!\w)|(\[[^\[\]\n]*\]))(\W*\Z)?"
    r"|(\\boxed)\{(?:\\text\{)?([^{}\n]+)\}",
    re.IGNORECASE,
)
"""A text within marks that is called the answer, or ends the thought as what something is."""
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
        if says_other_result(thought, turn):
            return OTHER_RESULT
        return REPEATS if _repeats(thought) else None

    return check


def says_other_result(thought: str, turn: dict[str, Any]) -> bool:
    """Whether a thought states another result than its turn hands in: by its last call, or without one as a text.

    Of a call with several arguments, a number that the thought states by the argument's name. Else the last number or
    the last text within marks that it states, unless the handed in one comes after it. False where it states none.
    """
    handed = _handed_in(turn)
    plain = THOUSANDS.sub("", ASIDE.sub("", thought.replace("\u2212", "-")))
    if len(handed) > 1:
        return any(_names_other(plain, name, text) for name, text in handed.items() if NUMBER.fullmatch(text))
    text = next(iter(handed.values()), "")
    if NUMBER.fullmatch(text):
        return _ends_in_other_number(plain, _number(THOUSANDS.sub("", text)))
    stated = next(reversed([*STATED_TEXT.finditer(thought)]), None)
    if stated is None or not (letters := _letters(text)):
        return False
    answer, *marked, end, boxed, in_box = stated.groups()
    result = _letters(next(filter(None, (*marked, in_box)), ""))
    is_result = answer or boxed or (end is not None and 2 * len(result) >= len(letters))  # else it may be a part
    is_same = result == letters or (not turn.get("tool_calls") and result in letters)  # a text may say more
    return bool(is_result) and not is_same and letters not in _letters(thought[stated.end() :])


def _handed_in(turn: dict[str, Any]) -> dict[str, str]:
    """The arguments of a turn's last call as texts, by name; of a turn without one the number or text that it is."""
    calls = turn.get("tool_calls") or []
    if not calls:
        content = str(turn.get("content") or "").strip()
        stated = STATED.findall(content)
        return {"": stated[-1] if stated else content}
    given = arguments_of(calls[-1])
    return {name: str(value).strip() for name, value in given.items()} if isinstance(given, dict) else {}


def _ends_in_other_number(plain: str, handed: Decimal) -> bool:
    if not (stated := STATED.findall(plain)):
        return False
    results = [stated[-1], *NUMBER.findall(plain)[-1:], *LEFT.findall(plain)[-1:]]
    is_share = re.search(rf"{re.escape(stated[-1])}\s*%", plain) is not None
    return not any(handed in ((number := _number(each)), number / 100 if is_share else number) for each in results)


def _names_other(plain: str, name: str, text: str) -> bool:
    stated = re.findall(rf"\b{re.escape(name)}[`\"']?\s*(?:=|:|is)\s*({NUMBER.pattern})(?![\w*/+-]|\s*[*/+=-])", plain)
    return bool(stated) and _number(stated[-1]) != _number(text)


def _letters(text: str) -> str:
    return "".join(re.findall(r"\w+|-(?=\d)", text)).casefold()


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
