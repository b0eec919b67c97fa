"""An order desk: look a customer up, list their orders, and refund the damaged one, or refuse.

In: how long ids are, and what looking pays. Out: a reward of 1.0 for the right last call. The policy: an order is
refunded up to 30 days after it was delivered.
"""

import random
import re
from typing import Any

from pydantic import Field

from apprentice.envs.game import EnvironmentSettings, Game
from apprentice.envs.policy import errs, question_in

GOODS = "lamp", "chair", "kettle", "radio", "clock", "mirror", "vase", "rug"
NAMES = "ada", "bob", "cleo", "dan", "eva", "finn", "gus", "hana", "ivo", "jo", "kim", "leo"
DAYS = 30
"""Days after its delivery up to which an order is refunded."""


class Settings(EnvironmentSettings):
    """How hard the desk is."""

    digits: int = Field(default=4, ge=1, le=8)
    """Digits of the ids."""
    orders: int = Field(default=2, ge=1, le=6)
    """Orders of a customer."""
    looking: float = Field(default=0.1, ge=0.0, le=0.4)
    """What each of the two steps before the last call pays."""
    wrong: float = Field(default=0.2, ge=0.0, le=0.9)
    """What a wrong last call pays."""


class Desk(Game):
    """One complaint."""

    Settings = Settings
    settings: Settings
    phrases = (*GOODS, " arrived ", " days ago.", "customer ", "order ", "The customer is ", "refunded", "refused")
    instructions = (
        "You work at an order desk. Look the customer up, list the orders, then refund the order that the complaint is "
        f"about if it arrived at most {DAYS} days ago; else refuse it."
    )
    max_turns = 4

    def ask(self, seed: int) -> str:
        draw = random.Random(seed)
        self._name = f"{draw.choice(NAMES)}{draw.randint(10, 99)}"
        ids = draw.sample(range(10 ** (self.settings.digits - 1), 10**self.settings.digits), self.settings.orders + 1)
        self._customer, goods = str(ids[0]), draw.sample(GOODS, self.settings.orders)
        self._orders = {str(each): (what, draw.randint(1, 60)) for each, what in zip(ids[1:], goods, strict=True)}
        self._right = draw.choice(list(self._orders))
        what, days = self._orders[self._right]
        self.correct = f"refund {self._right}" if days <= DAYS else f"refuse {self._right}"
        self._looked: set[str] = set()
        return f"{self._name} writes: my {what} is damaged."

    def find_customer(self, name: str) -> str:
        """Look a customer up.

        Args:
            name: The name in the complaint.

        Returns:
            The customer's id.
        """
        if str(name) != self._name:
            raise ValueError("There is no such customer.")
        self._look("customer")
        return f"The customer is {self._customer}."

    def list_orders(self, customer: str) -> str:
        """List a customer's orders.

        Args:
            customer: The customer's id.

        Returns:
            The orders, and when they arrived.
        """
        if str(customer) != self._customer:
            raise ValueError("There is no such customer.")
        self._look("orders")
        return " ".join(f"order {each}: {what} arrived {days} days ago." for each, (what, days) in self._orders.items())

    def refund(self, order: str) -> str:
        """Refund an order. This ends the conversation.

        Args:
            order: The order's id.

        Returns:
            What was done.
        """
        return self._end(f"refund {order}", "refunded")

    def refuse(self, order: str) -> str:
        """Refuse to refund an order. This ends the conversation.

        Args:
            order: The order's id.

        Returns:
            What was done.
        """
        return self._end(f"refuse {order}", "refused")

    def traits(self, question: str) -> dict[str, int | str]:
        return {"goods": question.rpartition(" my ")[2].partition(" ")[0]}

    def _look(self, what: str) -> None:
        self._looked.add(what)
        self.reward = self.settings.looking * len(self._looked)

    def _end(self, said: str, done: str) -> str:
        self.reward, self.done = (1.0 if said == self.correct else self.settings.wrong), True
        return done


def _listed(text: str) -> list[tuple[str, str, int]]:
    found = re.findall(r"order (\d+): (\w+) arrived (\d+) days", text)
    return [(order, what, int(days)) for order, what, days in found]


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """Return the scripted teacher's next call; on a share of the complaints the last one takes the wrong action."""
    question = question_in(messages)
    told = [str(each["content"]) for each in messages if each["role"] == "tool"]
    if not told:
        return "find_customer", {"name": question.partition(" ")[0]}
    if len(told) == 1:
        return "list_orders", {"customer": told[0].rpartition(" ")[2].rstrip(".")}
    what = question.rpartition(" my ")[2].partition(" ")[0]
    order, _, days = next(each for each in _listed(told[1]) if each[1] == what)
    refunds = (days <= DAYS) != errs(question, error_rate)
    return ("refund" if refunds else "refuse"), {"order": order}
