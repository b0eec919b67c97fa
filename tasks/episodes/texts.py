"""When two texts are the same, and where one text stands within another.

In: questions, prompts, replies of anybody. Out: their normalized form, the longest known text within another, what a
text says as JSON, and whether it can be written at all.
Why: a question that training saw is found in whatever form somebody's editor, file system or website left it.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

APART = ("<super>", "<sub>", "<fraction>")
"""Kinds of Unicode's compatibility forms that stay what they are: 2⁵ is not 25, and 1½ is not 11/2."""
UNSEEN = (
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
)
"""Unicode's Default_Ignorable_Code_Point: soft hyphens, zero-width characters, directions, variation selectors."""


class _Folding(dict[int, str]):
    """A table for `str.translate` that is filled as characters are met."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.decomposition(chr(code)).partition(" ")[0]
        plain = kind.startswith("<") and kind not in APART
        self[code] = unicodedata.normalize("NFKC", chr(code)) if plain else chr(code)
        return self[code]


_FOLDING = _Folding(dict.fromkeys(UNSEEN, ""))


def same_text(question: str) -> str:
    """A normalized question: those that differ only in case, white space or Unicode form count as the same.

    Composed and decomposed letters, full-width forms, ligatures and characters that nobody sees make no difference;
    superscripts, subscripts and fractions do.
    """
    if question.isascii():
        return " ".join(question.casefold().split())
    folded = unicodedata.normalize("NFD", question).translate(_FOLDING)
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFD", folded).casefold()).split())


def as_stored(text: str) -> str:
    """A text whatever file system and editor it went through: with composed letters, and lines that end in a newline.
    Case and spaces count."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n"))


def stands_in(question: str, text: str) -> bool:
    """Whether a text, such as a prompt of somebody else's, holds the question as whole words; both normalized."""
    at = text.find(question)
    while at >= 0:
        if not (text[:at][-1:].isalnum() or text[at + len(question) :][:1].isalnum()):
            return True
        at = text.find(question, at + 1)
    return False


class KnownTexts:
    """Texts that are looked for within others, as whole words; all normalized.

    A text is looked up by its first letters and its length, so that a search costs the same among ten known texts and
    among a hundred thousand.
    """

    def __init__(self, texts: Iterable[str]):
        self._places = {text: place for place, text in enumerate(texts)}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._places:
            lengths[text[:HEAD]].add(len(text))
        self._lengths = {head: sorted(each, reverse=True) for head, each in lengths.items()}
        self._heads = sorted({len(head) for head in lengths}, reverse=True)

    def longest_in(self, text: str) -> str | None:
        """The longest known text that `text` holds as whole words, the first known one of several; None without."""
        best: str | None = None
        for at in range(len(text) + 1):
            if text[max(at - 1, 0) : at].isalnum():
                continue
            for size in self._heads:
                for length in self._lengths.get(text[at : at + size], ()):
                    found = text[at : at + length]
                    if best is not None and length < len(best):
                        break
                    if found not in self._places or text[at + length : at + length + 1].isalnum():
                        continue
                    if best is None or len(found) > len(best) or self._places[found] < self._places[best]:
                        best = found
        return best


HEAD = 16
"""Letters by which a known text is looked up."""


def read_json(text: str, otherwise: Any = None, **how: Any) -> Any:
    """What a text says as JSON; `otherwise` where it is none, or is nested too deeply. `how`: options of json.loads."""
    try:
        return json.loads(text, **how)
    except (ValueError, RecursionError):
        return otherwise


def is_broken(value: Any) -> bool:
    """Whether a text, or one inside of JSON, holds half a character, which cannot be written as UTF-8."""
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        return True
    return False
