"""Say a letter's successor, in two calls; the settings name the method that fails, and how."""

import random
from typing import Any

from apprentice.envs.game import EnvironmentSettings, Game
from apprentice.envs.policy import question_in

LETTERS = "abcdefghijklmnopqrstuvwxy"


class Settings(EnvironmentSettings):
    """What fails."""

    fault: str = ""


class Broken(Game):
    """Two calls an episode."""

    Settings = Settings
    settings: Settings

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._fault = settings.fault
        self._letters: dict[str, str] = {}
        if self._fault == "init raises":
            raise KeyError("init")

    @property
    def instructions(self) -> Any:
        if self._fault == "instructions raise":
            raise KeyError("instructions")
        return None if self._fault == "no instructions" else "Look the letter up, then say its successor."

    @property
    def max_turns(self) -> int:
        return 0 if self._fault == "no turns" else 3

    def ask(self, seed: int) -> Any:
        letter = random.Random(seed).choice(LETTERS)
        self._name = f"L-{random.Random(seed).randint(100, 999)}"
        self._letters[self._name] = letter
        self.correct = chr(ord(letter) + 1)
        if self._fault == "ask raises" or (self._fault == "ask raises on some" and seed == 3):
            return self._letters["there is none"]
        if self._fault == "ask is exhausted":
            return next(name for name in self._letters if not name)
        if self._fault == "ask returns nothing":
            return None
        return f"The successor of letter {self._name}?"

    def look(self, name: str) -> Any:
        """Look a letter up.

        Args:
            name: Its name.
        """
        if self._fault == "a near miss raises":
            return f"{self._letters[str(name)]}, not L-10"
        if self._fault == "a tool is exhausted":
            return next(each for each in self._letters if not each)
        if self._fault == "a tool returns nothing":
            return None
        if str(name) not in self._letters:
            raise ValueError("There is no such letter.")
        return f"{self._letters[str(name)]}, not L-10"

    def say(self, letter: str) -> str:
        """Say the successor.

        Args:
            letter: The letter.
        """
        reward: Any = float(str(letter) == self.correct)
        if self._fault == "a tool raises":
            return LETTERS[ord(str(letter)[0])]
        if self._fault == "the right answer is a number":
            self.correct = 7  # type: ignore[assignment]
        self.reward, self.done = "all" if self._fault == "the reward is text" else reward, True
        if self._fault == "done is nothing":
            self.done = None  # type: ignore[assignment]
        return "OK."

    def traits(self, question: str) -> Any:
        if self._fault == "traits raise":
            return {"letter": self._letters[self._name]}
        if self._fault == "traits are exhausted":
            return {"letter": next(name for name in self._letters if name in question)}
        if self._fault == "traits are wrong":
            return {"letter": [question]}
        return {"digits": len(question)}


def check(settings: dict[str, Any]) -> None:
    """Fail, if that is the fault."""
    if settings.get("fault") == "check raises":
        settings["nothing"]


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> Any:
    """Return the next call, or what a wrong script returns."""
    fault = settings.get("fault", "")
    told = [str(each["content"]) for each in messages if each["role"] == "tool"]
    if fault == "call raises":
        settings["nothing"]
    if fault == "call converts" and told:
        int(told[0])
    if fault == "call is exhausted" and told:
        next(text for text in told if not text)
    if fault == "call fails where it is to be wrong" and error_rate:
        settings["nothing"]
    made: dict[str, Any] = {
        "call returns nothing": None,
        "call returns a name": "look",
        "call names an unknown tool": ("lok", {}),
        "call gives another argument": ("look", {"nam": "L-1"}),
        "call gives another type": ("look", {"name": 7}),
        "call gives no JSON": ("look", {"name": {1, 2}}),
        "call gives a list": ("look", ["L-1"]),
    }
    if fault in made:
        return made[fault]
    if not told:
        return "look", {"name": question_in(messages).split()[-1].strip("?")}
    return "say", {"letter": chr(ord(told[0][0]) + 1)}
