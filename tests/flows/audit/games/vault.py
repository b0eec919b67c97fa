"""Open the vault of a name with its code; a wrong code costs 1. The settings name what is wrong."""

import random
from typing import Any

from apprentice.envs.game import EnvironmentSettings, Game
from apprentice.envs.policy import question_in


class Settings(EnvironmentSettings):
    """What is wrong with the rewards."""

    fault: str = ""


class Vault(Game):
    """Two calls an episode."""

    Settings = Settings
    settings: Settings
    reward_range = (-1.0, 1.0)
    instructions = "Look the code up, then open the vault with it. A wrong code sets off the alarm."
    max_turns = 2

    def ask(self, seed: int) -> str:
        draw = random.Random(seed)
        self._name, self._code = f"V-{seed}", draw.randint(1000, 9999)
        return f"Open {self._name}."

    def look(self, name: str) -> str:
        """Look a code up.

        Args:
            name: The vault's name.
        """
        if str(name) != self._name:
            raise ValueError("No such vault.")
        if self.settings.fault == "pays for looking":
            self.reward = 0.1
        return f"Its code is {self._code}, and was {self._code + 7}."

    def open(self, code: int) -> str:
        """Open the vault.

        Args:
            code: Its code.
        """
        self.reward, self.done = (1.0 if str(code) == str(self._code) else -1.0), True
        return "OK."


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """Return the next call."""
    told = [str(each["content"]) for each in messages if each["role"] == "tool"]
    if not told:
        return "look", {"name": question_in(messages).split()[-1].strip(".")}
    return "open", {"code": int(told[0].split()[3].strip(","))}
