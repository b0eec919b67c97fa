"""Limits between runs, on a real Prefect server."""

import asyncio
import threading
import time
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine import limits
from apprentice.tasks.engine.limits import Rate, Slot, leases, limit_name
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.permanent_server import shared


def test_without_a_prefect_server_nothing_is_shared():
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert not shared()
        asyncio.run(opened(leases(EnvironmentServer(url="http://127.0.0.1:1"))()))


async def opened(context: Any) -> None:
    async with context:
        pass


def test_a_limits_name_says_what_and_where():
    assert limit_name("sessions", "https://owner-wordle.hf.space/x") == "sessions-owner-wordle-hf-space"


def test_no_more_sessions_are_held_than_the_shared_limit_grants(prefect_server):
    assert shared()
    held = most = 0
    two_held = asyncio.Event()

    async def one() -> None:
        nonlocal held, most
        async with Slot("sessions-toy", 2):
            held += 1
            most = max(most, held)
            if held == 2:
                two_held.set()
            await asyncio.wait_for(two_held.wait(), 120)
            await asyncio.sleep(0.1)
            held -= 1

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(5)))

    asyncio.run(all_of_them())
    assert most == 2


def test_a_limit_that_an_operator_changed_is_kept(prefect_server):
    async def changed() -> int:
        await opened(Slot("sessions-operated", 5))
        async with get_client() as client:
            from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate

            await client.update_global_concurrency_limit("sessions-operated", GlobalConcurrencyLimitUpdate(limit=1))
            await opened(Slot("sessions-operated", 5))
            return (await client.read_global_concurrency_limit_by_name("sessions-operated")).limit

    assert asyncio.run(changed()) == 1


def test_a_server_of_this_run_alone_needs_no_lease(prefect_server):
    assert leases(EnvironmentServer(url="http://127.0.0.1:1", shared=False)).__name__ == "nullcontext"
    assert leases(EnvironmentServer(url="http://127.0.0.1:1")).__class__.__name__ == "partial"


async def taken(rate: Rate, times: int, units: float = 1.0) -> float:
    began = time.monotonic()
    for _ in range(times):
        await rate.take(units)
    return time.monotonic() - began


def test_a_rate_within_one_process_is_kept():
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert asyncio.run(taken(Rate("requests-here", per_minute=1200), 40)) > 0.9  # a burst of 20, then 20 a second


@pytest.mark.long
def test_an_amount_beyond_a_seconds_worth_is_granted_and_waited_for():
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert asyncio.run(taken(Rate("tokens-here", 60_000, largest=2000), 2, units=2000)) > 1.9


@pytest.mark.long
def test_a_rate_is_shared_between_clients_of_one_prefect_server(prefect_server):
    async def both() -> float:
        mine, other_rate = (Rate("requests-shared", per_minute=600) for _ in range(2))
        began = time.monotonic()
        await asyncio.gather(taken(mine, 20), taken(other_rate, 20))
        return time.monotonic() - began

    assert asyncio.run(both()) > 2.0  # 40 at 10 a second, less a burst of 10 and what is left of two blocks


@pytest.mark.parametrize("folders", [("one", "one"), ("one", "other")])
def test_one_run_of_a_name_at_a_time_of_a_folder_and_of_a_permanent_server(
    folders: tuple[str, str], tmp_path: Path, prefect_server, monkeypatch: pytest.MonkeyPatch
):
    warned: list[str] = []
    monkeypatch.setattr(announce, "warn", warned.append)
    first, second = (LocalStore(tmp_path / folder, "toy") for folder in folders)
    is_one_folder = first.root == second.root
    entered = threading.Event()

    def other() -> None:
        with limits.one_run(second, "improve-Toy recipe"):
            entered.set()

    with temporary_settings(restore_defaults={PREFECT_API_URL} if is_one_folder else None):
        assert shared() is not is_one_folder
        waiting = threading.Thread(target=copy_context().run, args=(other,), daemon=True)
        with limits.one_run(first, "improve-Toy recipe"), limits.one_run(first, "improve-another"):
            waiting.start()
            assert not entered.wait(1.0)
        assert entered.wait(60)
        waiting.join()
    assert warned == (
        ["Another run of improve-Toy recipe is under way; waiting for it to end."] if is_one_folder else []
    )
