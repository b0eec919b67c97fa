"""The teacher's costs, with a hard cap that is checked before every request.

In: prices, a cap, token counts. Out: costs in USD; BudgetReached when the next request could exceed the cap.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from apprentice.tasks.reporting.errors import BudgetReached
from apprentice.tasks.settings.endpoint import Prices

MILLION = 1_000_000


class Budget:
    """The budget of one collection.

    Args:
        cap: Maximum USD; None for no cap.
        ledger: A file with the USD spent and reserved, for resumed collections, also after a kill with open requests.
        check: Called before each change; raises where another process may change the ledger.

    Attributes:
        spent: USD spent in all runs of this collection.
        held: USD reserved: the maximum cost of open requests.
    """

    def __init__(
        self, prices: Prices | None, cap: float | None, ledger: Path, check: Callable[[], None] = lambda: None
    ):
        self._check = check
        self._prices = prices or Prices(prompt=0.0, completion=0.0)
        self._cap = cap
        self._ledger = os.open(ledger, os.O_RDWR | os.O_CREAT)
        spent, *ratio = (os.pread(self._ledger, 80, 0) or b"0.0").split()
        self.spent = float(spent)
        self._ratio = float(ratio[0]) if ratio else 0.0  # the largest cost of an answer per USD reserved; 0: none yet
        self.held = 0.0
        self._out = 0
        self._charged = asyncio.Event()

    def close(self) -> None:
        """May be called again."""
        ledger, self._ledger = self._ledger, -1
        if ledger >= 0:
            os.close(ledger)

    def cost(self, prompt: int, completion: int, cached: int = 0, cache_write: int = 0) -> float:
        """Cost in USD of the given tokens; `cached` and `cache_write` of the `prompt` tokens have their own prices."""
        prices = self._prices
        read = prices.prompt if prices.cached is None else prices.cached
        write = prices.prompt if prices.cache_write is None else prices.cache_write
        plain = prices.prompt * (prompt - cached - cache_write)
        return (plain + read * cached + write * cache_write + prices.completion * completion) / MILLION

    @asynccontextmanager
    async def reserved(self, most: float) -> AsyncIterator[Callable[[float], None]]:
        """Reserves `most` USD for a request; yields `charge(usd)` for its actual cost, by default `most`.

        Waits for open requests when the rest of the budget is too small; raises BudgetReached when none is open. An
        answer may cost more than `most`, where an endpoint's limit does not count its reasoning: the first request goes
        alone, and as much more as the dearest answer took is reserved from then on, twice that for several at once.
        """
        estimate = most
        while self._cap is not None:
            over = max(self._ratio, 1.0)
            most = estimate * over * (2.0 if over > 1.0 and self._out else 1.0)
            if self.spent + self.held + most <= self._cap and (self._ratio or not self._out or not estimate):
                break
            if not self._out:
                raise BudgetReached
            self._charged.clear()
            await self._charged.wait()
        charged = most

        def charge(usd: float) -> None:
            nonlocal charged
            charged = usd
            if usd and estimate:
                self._ratio = max(self._ratio, usd / estimate)

        try:
            self._move(reserved=most, out=1)
            yield charge
        finally:
            try:
                self._move(reserved=-most, out=-1, spent=charged)
            finally:
                self._charged.set()

    def _move(self, reserved: float, out: int, spent: float = 0.0) -> None:
        self._check()
        self.held += reserved
        self._out += out
        self.spent += spent
        os.pwrite(self._ledger, f"{self.spent + self.held:<39.12f}{self._ratio:<20.6f}\n".encode(), 0)
