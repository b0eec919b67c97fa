"""Find a number by "higher" and "lower": the environment to copy from. One file is all of it.

In: how many numbers and how many guesses. Out: a reward of 1.0 for the number, found within the guesses; less than 0.5
for what was ruled out.
Its scripted teacher halves what is still possible. With `halving: false` it guesses at random within that, so a student
that learns to halve becomes better than its teacher.
"""

import math
import random
from typing import Any

from pydantic import Field

from apprentice.envs.game import EnvironmentSettings, Game, whole_number
from apprentice.envs.policy import digest, errs, question_in


class Settings(EnvironmentSettings):
    """How far to search."""

    most: int = Field(default=31, ge=2, le=1000)
    """The number is one of 1 to this."""
    guesses: int = Field(default=5, ge=1, le=20)
    """Guesses an episode. Five are enough for 31 numbers, if each halves what is left."""
    halving: bool = True
    """Whether the script halves; otherwise it guesses."""


class Number(Game):
    """A hidden number, found by guessing."""

    Settings = Settings
    settings: Settings
    phrases = ("It is from ", " to ", "Right.")
    instructions = "Find the hidden number. Call the tool `guess`; it says what the number can still be."

    @property
    def max_turns(self) -> int:
        return self.settings.guesses

    def ask(self, seed: int) -> str:
        draw = random.Random(seed)
        self._hidden = draw.randint(1, self.settings.most)
        self._low, self._high = 1, self.settings.most
        self.correct = str(self._hidden)
        name = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6))  # no two games have the same text
        return f"Game {name}: the number is from 1 to {self.settings.most}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: A whole number.

        Returns:
            Whether it is right, or what the number can still be.
        """
        guessed = whole_number(number, "number", 1, self.settings.most)
        if guessed == self._hidden:
            self.reward, self.done = 1.0, True
            return "Right."
        if guessed < self._hidden:
            self._low = max(self._low, guessed + 1)
        else:
            self._high = min(self._high, guessed - 1)
        self.reward = 0.5 * (1 - math.log(self._high - self._low + 2) / math.log(self.settings.most + 1))
        return f"It is from {self._low} to {self._high}."


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """Return the scripted teacher's next call; on a share of the games it is always 1."""
    return work(settings, messages, error_rate)[1]


def work(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, Any]:
    """Return how the scripted teacher finds its next call, in words, and the call."""
    question = question_in(messages)
    told = next(text for text in (str(each["content"]) for each in reversed(messages)) if " from " in text)
    low, high = map(int, told.rpartition(" from ")[2].strip(".").split(" to "))
    best, how = (low + high) // 2, f"{low} + {high} = {low + high}, half of it is"
    if not settings.get("halving", True):
        best = random.Random(digest(f"{question} {len(messages)}")).randint(low, high)
        how = f"{low} to {high} is left, I try"
    number = 1 if errs(question, error_rate) else best
    return f"{how} {number}.", ("guess", {"number": number})
