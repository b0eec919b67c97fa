"""An order desk with a policy: some episodes end with a call, the others with a text. A game in one file, for tests."""

import random
from typing import Any

from apprentice.envs.game import Game
from apprentice.envs.policy import errs, question_in

LIMIT = 4


class Desk(Game):
    """One order an episode. It is refunded, or the customer is told why not."""

    instructions = (
        f"Look the order up. Refund it if it is at most {LIMIT} weeks old. If it is older, do not call a tool: write "
        "that you cannot, and how old it is."
    )
    max_turns = 3
    phrases = ("It is ", " weeks old.", "I cannot refund it: it is ")

    def ask(self, seed: int) -> str:
        draw = random.Random(seed)
        self._weeks, self._is_known = draw.randint(1, 9), False
        return f"Order {''.join(draw.choices('abcdefghij', k=6))}: please refund me."

    def look_up(self) -> str:
        """Look the order up.

        Returns:
            How old it is.
        """
        self._is_known = True
        return f"It is {self._weeks} weeks old."

    def refund(self) -> str:
        """Refund the order.

        Returns:
            A confirmation.
        """
        self.reward, self.done = float(self._is_known and self._weeks <= LIMIT), True
        return "Refunded."

    def say(self, text: str) -> None:
        if not text.startswith("I "):
            raise ValueError("Write a sentence of your own.")
        self.reward = float(
            self._weeks > LIMIT and self._is_known and f"cannot refund it: it is {self._weeks} weeks old" in text
        )

    def traits(self, question: str) -> dict[str, int | str]:
        return {"first": question.split()[1][0]}


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float
) -> tuple[str, dict[str, Any]] | str:
    """Return the scripted teacher's next call or its last text; where it errs it refunds every order."""
    heard = [str(each["content"]) for each in messages if each["role"] == "tool"]
    if not heard:
        return "look_up", {}
    weeks = int(heard[-1].split()[2])
    if weeks <= LIMIT or errs(question_in(messages), error_rate):
        return "refund", {}
    return f"I cannot refund it: it is {weeks} weeks old."
