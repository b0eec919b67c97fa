"""Texts are the same in whatever Unicode form they come; a known text is found inside another by look-ups."""

import random
import sys
from collections.abc import Callable
from unicodedata import normalize

import pytest

from apprentice.tasks.episodes.texts import KnownTexts, is_broken, same_text, stands_in


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Zähle bis drei", normalize("NFD", "Zähle bis drei")),
        ("각자 세어라", normalize("NFD", "각자 세어라")),
        ("Was ist 10 Å?", "Was ist 10 \u212b?"),
        ("１７＋４＝？", "17+4=?"),
        ("ガラス", "ｶﾞﾗｽ"),
        ("ﬁnd the ﬂag", "find the flag"),
        ("wait…", "wait..."),
        ("17\u00a0+\u20094", "17 + 4"),
        ("17 +\u200b 4", "17 + 4"),
        ("\ufeff17 + 4", "17 + 4"),
        ("Wörter\u00adbuch", "Wörterbuch"),
        ("❤\ufe0f", "❤"),
        ("a\u200eb", "ab"),
        ("Straße", "STRASSE"),
        ("ΌΣΟΣ", "όσος"),
        ("İki", "i̇ki"),
        ("𝗛𝗲𝗹𝗽", "help"),
        ("10 µm", "10 μm"),
        ("x\r\ny  ", "x\ny"),
        ("x\u2028y", "x y"),
        ("q̣̇", "q̣̇"),
    ],
)
def test_one_text_in_two_forms_is_the_same(one: str, other: str):
    assert same_text(one) == same_text(other)
    assert same_text(same_text(one)) == same_text(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2⁵", "25"),
        ("x₁", "x1"),
        ("1½", "11/2"),
        ("Zahle", "Zähle"),
        ("a b", "ab"),
        ("−4", "4"),
        ("4.", "4"),
        ("が", "か"),
    ],
)
def test_texts_that_mean_something_else_are_not_the_same(one: str, other: str):
    assert same_text(one) != same_text(other)


def test_a_text_in_ascii_is_normalized_as_in_every_store_so_far():
    text = "".join(map(chr, range(128)))
    for each in (text, " What IS\t17 + 4 =\r\n ", ""):
        assert same_text(each) == " ".join(each.casefold().split())


KNOWN = [
    "17 + 4 =",
    "17 + 4 = ?",
    "a",
    "a b",
    "the sum of one and two and three",
    "the sum of one and two",
    "(x",
    "b a",
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("17 + 4 =", "17 + 4 ="),
        ("say: 17 + 4 = ?", "17 + 4 = ?"),
        ('{"text": "a b"}', "a b"),
        ("the sum of one and two and three, please", "the sum of one and two and three"),
        ("the sum of one and twofold", None),
        ("abc", None),
        ("f(x", None),
        ("f (x", "(x"),
        ("b a b", "a b"),
        ("ä a", "a"),
        ("", None),
    ],
)
def test_the_longest_known_text_that_stands_within_another_is_found(text: str, found: str | None):
    assert KnownTexts(KNOWN).longest_in(text) == found


def test_what_is_found_is_what_a_search_text_by_text_finds():
    draw = random.Random(1)
    words = ["a", "b", "ab", "the sum of", "1", "+", "(", "é", "of all numbers"]
    some: Callable[[int], str] = lambda most: " ".join(draw.choices(words, k=draw.randint(1, most)))  # noqa: E731
    for _ in range(300):
        known, text = list(dict.fromkeys(some(5) for _ in range(12))), some(12)
        within = [each for each in known if stands_in(each, text)]
        assert KnownTexts(known).longest_in(text) == (max(within, key=len) if within else None)


def operations(known: int) -> int:
    """How many functions a search calls among so many known texts."""
    texts = KnownTexts(f"the answer to question {number:06}" for number in range(known))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(count)
    found = texts.longest_in("please say the answer to question 000007 in one word, or the answer to question 999999x")
    sys.setprofile(None)
    assert found == "the answer to question 000007"
    return calls


def test_a_search_costs_the_same_among_ten_texts_and_among_a_hundred_thousand():
    assert operations(100_000) == operations(10) < 1_000


@pytest.mark.parametrize(
    ("value", "broken"),
    [
        ("ä😀", False),
        ("\ud83d", True),
        ({"a": ["\ud83d"]}, True),
        ({"a": ["😀"]}, False),
        (None, False),
    ],
)
def test_half_a_character_is_seen(value: object, broken: bool):
    assert is_broken(value) == broken
