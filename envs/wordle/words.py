"""The lists of secret words, and the puzzle that a seed names.

In: a list's name, how many candidates, a seed. Out: the secret, and the text of the puzzle.
Why lists by name: TextArena takes its words from NLTK's download, which a closed network has not. A silent switch to
another list would make the same seed another word, so a list is chosen by the settings, and refused where it is not.
No download is tried, as TextArena does: in a closed network it may hang.
"""

import hashlib
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

LETTERS, GUESSES = 5, 6
NAMED = ".\nThe secret is one of: "
OPEN = ".\nThe secret is an English word of five letters."
SOURCES = {
    "wordle": "the original game's, from the package reasoning_gym",
    "textarena": "TextArena's own: nouns of NLTK's basic English",
}

log = logging.getLogger("uvicorn.error")  # where a server's own lines stand


class Puzzle(NamedTuple):
    """What a seed names."""

    secret: str
    candidates: tuple[str, ...]
    """Those that the question names; none where it names none."""
    question: str


def puzzle(name: str, candidates: int, seed: int) -> Puzzle:
    """Raises ValueError for a list that is unknown or cannot be had, and for more candidates than it holds.

    The puzzle is called by a hash of what is hidden, so that equal texts are equal puzzles and others are not.
    """
    pool = word_list(name)
    if candidates == 1 or not 0 <= candidates <= len(pool):
        raise ValueError(f"candidates must be 0, or 2 to {len(pool)}, not {candidates}")
    draw = random.Random(seed)
    named = tuple(draw.sample(pool, candidates))
    secret = draw.choice(named or pool)  # without candidates the first draw, so the word that TextArena itself draws
    return Puzzle(secret, named, question_about(secret, named))


def question_about(secret: str, named: tuple[str, ...] = ()) -> str:
    """The text of the puzzle with this secret and these candidates."""
    called = hashlib.sha256(" ".join([secret, *named]).encode()).hexdigest()[:8]
    rest = f"{NAMED}{', '.join(named)}." if named else OPEN
    return f"Puzzle {called}{rest}"


def candidates_in(question: str) -> list[str]:
    """The candidates that a question names."""
    _, _, named = question.partition(NAMED)
    return re.findall("[a-z]+", named)


@lru_cache
def word_list(name: str) -> tuple[str, ...]:
    """The words of a list, in its order. Raises ValueError where it cannot be had."""
    if name == "wordle":
        from reasoning_gym.data.wordle_words import wordle_words

        found = tuple(wordle_words)
    elif name == "textarena":
        found = _of_nltk()
    else:
        raise ValueError(f"unknown word list {name!r}; known: {', '.join(SOURCES)}")
    log.info("Word list in use: %s: %d words, %s", name, len(found), SOURCES[name])
    return found


def in_use(name: str) -> str:
    """Says which list it is."""
    return f"{name}: {len(word_list(name))} words, {SOURCES[name]}"


def _of_nltk() -> tuple[str, ...]:
    try:
        return _nouns(LETTERS)
    except LookupError:
        raise ValueError(
            "the word list 'textarena' is made from NLTK's data, which the server's machine has not: run there "
            "`python -m nltk.downloader words averaged_perceptron_tagger_eng`, or choose words: wordle"
        ) from None


@contextmanager
def without_downloads() -> Iterator[None]:
    """TextArena asks for NLTK's data when it is imported and when its dictionary is made."""
    import nltk

    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download


def _nouns(length: int) -> tuple[str, ...]:
    """TextArena's own: nouns of that length in NLTK's basic English. Raises LookupError without NLTK's data."""
    with without_downloads():
        from textarena.envs.Wordle.env import WordleEnv

        loader = object.__new__(WordleEnv)
        loader.word_length = length
        loader._load_word_list()
    return tuple(loader.word_list)
