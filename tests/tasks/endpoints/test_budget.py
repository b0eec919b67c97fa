"""A hard cap on money: no order of requests passes it, no kill forgets it."""

import asyncio
from pathlib import Path

import pytest

from apprentice.tasks.endpoints.budget import Budget
from apprentice.tasks.reporting.errors import BudgetReached
from apprentice.tasks.settings.endpoint import Prices

PRICES = Prices(prompt=1.0, cached=0.1, completion=4.0)


def test_cached_tokens_cost_what_cached_tokens_cost(tmp_path: Path):
    budget = Budget(PRICES, None, tmp_path / "spent")
    assert budget.cost(1_000_000, 500_000) == 3.0
    assert budget.cost(1_000_000, 0, cached=1_000_000) == pytest.approx(0.1)
    assert budget.cost(1_000_000, 0, cached=500_000, cache_write=500_000) == pytest.approx(0.05 + 0.5)


def test_a_price_that_is_left_out_is_that_of_the_prompt(tmp_path: Path):
    budget = Budget(Prices(prompt=1.0, completion=4.0), None, tmp_path / "spent")
    assert budget.cost(1_000_000, 0, cached=500_000, cache_write=500_000) == 1.0
    dearer = Budget(Prices(prompt=1.0, cache_write=1.25, completion=4.0), None, tmp_path / "dearer")
    assert dearer.cost(1_000_000, 0, cache_write=1_000_000) == 1.25


def test_requests_at_once_never_pass_the_cap_and_use_it_up(tmp_path: Path):
    budget = Budget(PRICES, 1.0, tmp_path / "spent")
    most_at_once = 0.0

    async def request() -> None:
        nonlocal most_at_once
        async with budget.reserved(0.3) as charge:
            most_at_once = max(most_at_once, budget.spent + budget.held)
            await asyncio.sleep(0)
            charge(0.1)

    async def all_of_them() -> list[BaseException | None]:
        return await asyncio.gather(*(request() for _ in range(30)), return_exceptions=True)

    refused = [each for each in asyncio.run(all_of_them()) if each is not None]
    assert all(isinstance(each, BudgetReached) for each in refused)
    assert most_at_once <= 1.0
    assert 30 - len(refused) == 8  # the ninth could have cost 0.3 where 0.2 was left
    assert budget.spent == pytest.approx(0.8)


def test_a_request_whose_answer_was_lost_is_charged_whole(tmp_path: Path):
    budget = Budget(PRICES, 1.0, tmp_path / "spent")

    async def lost() -> None:
        async with budget.reserved(0.3):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        asyncio.run(lost())
    assert budget.spent == pytest.approx(0.3)


def test_a_killed_collection_counts_what_was_out(tmp_path: Path):
    budget = Budget(PRICES, 1.0, tmp_path / "spent")

    async def killed() -> float:
        async with budget.reserved(0.3) as charge:
            resumed = Budget(PRICES, 1.0, tmp_path / "spent")  # what another process reads at this moment
            charge(0.1)
        return resumed.spent

    assert asyncio.run(killed()) == pytest.approx(0.3)
    assert Budget(PRICES, 1.0, tmp_path / "spent").spent == pytest.approx(0.1)


def test_a_ledger_that_cannot_be_written_raises_and_leaves_nobody_waiting(tmp_path: Path):
    budget = Budget(PRICES, 1.0, tmp_path / "spent")
    budget.close()

    async def request() -> None:
        async with budget.reserved(0.9):
            raise AssertionError("money was spent that is noted nowhere")

    async def both() -> tuple[BaseException | None, ...]:
        return await asyncio.wait_for(asyncio.gather(request(), request(), return_exceptions=True), timeout=10)

    assert all(isinstance(each, OSError | BudgetReached) for each in asyncio.run(both()))
