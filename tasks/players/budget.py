"""What the teacher costs, and a hard cap on it that is checked before money is spent.

In: prices, a cap, the usage of answers. Out: costs in USD; BudgetReached when the next request could pass the cap.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from apprentice.tasks.reporting.errors import BudgetReached
from apprentice.tasks.settings.stages import Prices

MILLION = 1_000_000


class Budget:
    """One collection's money.

    Args:
        cap: USD; None for no cap.
        ledger: A file that holds what was spent and reserved, so that a resumed collection knows, even one that was
            killed with requests out.

    Attributes:
        spent: USD so far, in all runs of this collection.
        held: USD that requests which are out could cost at most.
    """

    def __init__(self, prices: Prices | None, cap: float | None, ledger: Path):
        self._prices = prices or Prices(prompt=0.0, completion=0.0)
        self._cap = cap
        self._ledger = os.open(ledger, os.O_RDWR | os.O_CREAT)
        self.spent = float(os.pread(self._ledger, 40, 0) or 0.0)
        self.held = 0.0
        self._out = 0
        self._settled = asyncio.Event()

    def close(self) -> None:
        os.close(self._ledger)

    def cost(self, prompt: int, completion: int, cached: int = 0) -> float:
        """USD for so many tokens; `cached` ones of the prompt are charged as such."""
        prices = self._prices
        return (prices.prompt * (prompt - cached) + prices.cached * cached + prices.completion * completion) / MILLION

    @asynccontextmanager
    async def reserved(self, most: float) -> AsyncIterator[Callable[[float], None]]:
        """Holds `most` USD while a request is out; yields `charge(usd)`. What is not charged is charged whole.

        Waits for others to charge theirs when there is not enough; raises BudgetReached when none is out.
        """
        while self._cap is not None and self.spent + self.held + most > self._cap:
            if not self._out:
                raise BudgetReached
            self._settled.clear()
            await self._settled.wait()
        charged = most

        def charge(usd: float) -> None:
            nonlocal charged
            charged = usd

        try:
            self._move(reserved=most, out=1)
            yield charge
        finally:
            try:
                self._move(reserved=-most, out=-1, spent=charged)
            finally:
                self._settled.set()

    def _move(self, reserved: float, out: int, spent: float = 0.0) -> None:
        self.held += reserved
        self._out += out
        self.spent += spent
        os.pwrite(self._ledger, f"{self.spent + self.held:<39.12f}\n".encode(), 0)
