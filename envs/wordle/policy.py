"""A scripted teacher for Wordle: finds the word nearly always, and errs by design.

In: the settings and the messages as the student would see them. Out: one call of `guess`.
As many candidates as there are guesses it takes in turn, whatever the marks: that is sure, and a student without any
pretraining can learn it. Of more it takes the first that fits. Where none is named it knows the game's word list, and
takes the word whose letters are the commonest in their places. On a fixed share of the puzzles it misspells all.
"""

import json
from collections import Counter
from functools import lru_cache
from typing import Any

from apprentice.envs.policy import errs, question_in
from apprentice.envs.wordle.server import words


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where the list that it would have to know cannot be had here."""
    if not settings.get("candidates"):
        words.word_list(settings.get("words", "wordle"))


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn."""
    question = question_in(messages)
    named = words.candidates_in(question)
    pool = named or words.word_list(settings.get("words", "wordle"))
    told = _told(messages)
    fitting = [word for word in pool if word not in told and all(marks(g, word) == m for g, m in told.items() if m)]
    if 0 < len(named) <= words.GUESSES:
        fitting = [word for word in named if word not in told]
    choice = _commonest(tuple(fitting)) if fitting and not named else next(iter(fitting), pool[0])
    return "guess", {"word": _misspelt(choice) if errs(question, error_rate) else choice}


@lru_cache(maxsize=100_000)
def marks(guess: str, secret: str) -> str:
    """What the game says of a guess, such as "X G Y X X"."""
    elsewhere = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    told = []
    for g, s in zip(guess, secret, strict=True):
        told.append("G" if g == s else "Y" if elsewhere[g] > 0 else "X")
        elsewhere[g] -= g != s
    return " ".join(told)


def _told(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Each guess so far, and its marks: none for one that was refused."""
    guesses = [
        call["function"]["arguments"]
        for message in messages
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or []
    ]
    replies = [message["content"].split("\n")[0] for message in messages if message["role"] == "tool"]
    given = [json.loads(each) if isinstance(each, str) else each for each in guesses]
    return {
        each["word"]: reply if set(reply) <= set("GYX ") else "" for each, reply in zip(given, replies, strict=True)
    }


@lru_cache
def _commonest(fitting: tuple[str, ...]) -> str:
    counts = [Counter(letters) for letters in zip(*fitting, strict=True)]
    return max(fitting, key=lambda word: (sum(counts[place][letter] for place, letter in enumerate(word)), word))


def _misspelt(word: str) -> str:
    """The word with its last letter one further."""
    return word[:-1] + chr((ord(word[-1]) - ord("a") + 1) % 26 + ord("a"))
