"""What is wrong with a thought: why a student should not learn it.

In: an assistant's turn with a thought, the tools, the student's tokenizer. Out: the cause, as the filter counts it.
"""

import re
import unicodedata
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
A_NUMBER = rf"((?>{NUMBER.pattern}))(?!\s*(?:[-+*/×÷·^]|x\b)\s*\(?-?\d)"
"""A number that begins no expression: "2 x 10^3" is not 2."""
BETWEEN = r"(?:\s+(?:therefore|thus|then|now|so)\b)*[^\w\n.,;-]{0,40}"
"""What may stand between the words that state a result and its number."""
CLOSED = r"(?=\s*(?:%|[*$`\"')\]}]*\s*(?:[.,;:!?。，](?!\d)|$|\n|(?:so|and|which|because)\b)))"
"""The end of a clause, so that "I get 3 guesses" is no result."""
STATED = re.compile(
    # an equation, or what is called the answer
    rf"(?:(?:=|≈|→|->|⇒|\\boxed\{{|\b(?:answer|result)\b[^.;\n=]{{0,40}}?(?:\b(?:is|are|was|be)\b|:)|(?:答案|结果)\s*[是为：:]|等于"
    r"|\b(?:sum|total|difference|product)\b(?:\s+of\b[^.;:\n=]{0,40}?)?\s*(?:\b(?:is|are|was|be)\b|:))"
    rf"{BETWEEN}(?:\\boxed\{{)?{A_NUMBER}"
    # a clause that comes to a number
    r"|(?:\b(?:it|that|this|which)(?:\s+(?:is|was|must be|should be|would be)|['’]s)"
    r"|(?:[-+*/×÷]|\b(?:plus|minus|times|and)\b)\s*\d[\d,.]*\s+(?:is|are)"
    r"|\b(?:gets?|got|gives?|obtain|equals?|equal to|makes?|yields?|results? in|comes? to|adds? up to|should be))\b"
    rf"{BETWEEN}{A_NUMBER}{CLOSED}"
    # "85 = 47 + 38", told before what it is the result of
    rf"|(?:^|[.;]\s+)((?>{NUMBER.pattern}))(?=\s*=\s*\(?-?\d[\d,.]*\s*[-+*/×÷]))",
    re.IGNORECASE,
)
"""A result that is stated in words or by an equation."""
ASIDE = re.compile(
    r"\([^()]*=[^()]*\)|(?<=\S\s)(?:check|proof)[:,].*|(?<=[\w,]\s)(?:since|because|which is)\b.*", re.IGNORECASE
)
"""What follows a result and is none: a check, or its reason."""
STATED_TEXT = re.compile(
    r"\b(?:answer|result)\s*(?:is|=|:)\s*(?:\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|'([^'\n]+)'(?!\w)|(\[[^\n]*\]))"
    r"|\\boxed\{(?:\\text\{)?([^{}\\\n]+)\}",
    re.IGNORECASE,
)
"""A text within marks that is called the answer."""
BY_NAME = r"\b{name}[`\"']?\s*(?:=|:|is)\s*((?>-?\d+(?:,\d\d\d)*(?:\.\d+)?))(?=\s*(?:[.,;]\s|[.,;]?$)|\s+and\b)"
"""A number that is all that an argument is said to be."""
SIGN_APART = re.compile(r"(?<==)\s*-\s+(?=\d)")
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

    Of a call with one argument the last number that the thought states as a result, unless what is handed in follows
    it, or the last text that it calls the answer. Of one with several a number that it states by an argument's name, of
    a text without a call the last number: these are another result only where what is handed in stands nowhere in the
    thought. False where it states none.
    """
    plain, calls = _plain(thought), turn.get("tool_calls") or []
    if not calls:
        content = _plain(str(turn.get("content") or ""))
        stated = STATED.search(plain)
        given = {_number(each) for each in NUMBER.findall(content)}
        found = [_number(each) for each in NUMBER.findall(plain)]
        stands = any(each == number or _is_rounded(each, number) for each in found for number in given)
        return bool(stated and given) and not stands
    arguments = arguments_of(calls[-1])
    handed = arguments if isinstance(arguments, dict) else {}
    texts = {name: str(value).strip() for name, value in handed.items()}
    if len(handed) > 1:
        return any(_names_other(plain, *each) for each in texts.items() if NUMBER.fullmatch(each[1]))
    value, text = next(iter(handed.values()), ""), next(iter(texts.values()), "")
    if NUMBER.fullmatch(text):
        return _ends_in_other_number(plain, _number(THOUSANDS.sub("", text)))
    return isinstance(value, str) and _calls_other_the_answer(thought.replace("\u2212", "-"), text)


def _plain(text: str) -> str:
    return SIGN_APART.sub(" -", THOUSANDS.sub("", ASIDE.sub("", text.replace("\u2212", "-"))))


def _ends_in_other_number(plain: str, handed: Decimal) -> bool:
    """Whether the last result that is stated is another number, and what is handed in does not follow it."""
    if not (stated := [_result_in(plain, each) for each in STATED.finditer(plain)]):
        return False
    at, result = stated[-1]
    if handed == result or _is_rounded(result, handed):
        return False
    if re.match(r"-?[\d,.]+\s*%", plain[at:]) and handed == result / 100:
        return False
    after = any(_number(each[0]) == handed for each in NUMBER.finditer(plain) if each.start() > at)
    return not after and not _is_check(plain, stated, handed)


def _result_in(plain: str, stated: re.Match[str]) -> tuple[int, Decimal]:
    """Where a stated number stands, and the number."""
    group = next(n for n in range(1, len(stated.groups()) + 1) if stated[n])
    return stated.start(group), _number(stated[group])


def _is_check(plain: str, stated: list[tuple[int, Decimal]], handed: Decimal) -> bool:
    """Whether the last statement checks what is handed in, which was stated before: an equation with it on its left and
    a result that stood there earlier, as in "77 + 8 = 85. 85 - 8 = 77."."""
    at, result = stated[-1]
    first = next((place for place, number in stated[:-1] if number == handed), None)
    if first is None or not plain[:at].rstrip().endswith("="):
        return False
    left = NUMBER.findall(plain[stated[-2][0] + 1 : at])
    before = NUMBER.findall(plain[:first])
    return handed in map(_number, left) and result in map(_number, before)


def _is_rounded(result: Decimal, handed: Decimal) -> bool:
    """Whether what is handed in is the result with fewer decimals; nothing is rounded to 0."""
    of_result, of_handed = (max(-int(each.as_tuple().exponent), 0) for each in (result, handed))
    return bool(handed) and of_handed < of_result and abs(result - handed) <= Decimal(5).scaleb(-of_handed - 1)


def _names_other(plain: str, name: str, text: str) -> bool:
    named = re.escape(name).replace("_", "[ _]")
    stated = re.findall(BY_NAME.format(name=named), plain, re.IGNORECASE) if len(name) > 1 else []
    return bool(stated) and _number(text) not in map(_number, NUMBER.findall(plain))


def _calls_other_the_answer(thought: str, text: str) -> bool:
    stated = [group for found in STATED_TEXT.finditer(thought) for group in found.groups() if group]
    if not stated or not (letters := _letters(text)).strip():
        return False
    result = _letters(stated[-1])
    return result not in letters and letters not in result and letters not in _letters(thought)


def _letters(text: str) -> str:
    """The words and numbers of a text, with a space around each."""
    words = re.findall(r"-?[0-9]+|[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    return f" {' '.join(words)} "


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
