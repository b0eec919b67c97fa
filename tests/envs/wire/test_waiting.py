"""Synchronous code that waits on the loop: results, exceptions and context come through, and others run meanwhile."""

import asyncio
import contextvars
import subprocess
import sys
from typing import Any

import pytest

from apprentice.envs.wire.waiting import spawn, wait_for

here = contextvars.ContextVar("here", default="nowhere")


async def after(seconds: float, value: Any) -> Any:
    await asyncio.sleep(seconds)
    return value


async def failing() -> None:
    await asyncio.sleep(0)
    raise ValueError("on the loop")


def test_a_plain_thread_gets_results_and_exceptions():
    assert wait_for(after(0, 3)) == 3
    with pytest.raises(ValueError, match="on the loop"):
        wait_for(failing())


def test_spawned_code_waits_in_place_while_others_run():
    order = []

    def slow() -> str:
        order.append("slow starts")
        value = wait_for(after(0.05, "slow"))
        order.append("slow ends")
        return value

    def quick() -> str:
        order.append(wait_for(after(0, "quick")))
        return "quick"

    async def both() -> tuple[str, str]:
        return await asyncio.gather(spawn(slow), spawn(quick))

    assert list(wait_for(both())) == ["slow", "quick"]
    assert order == ["slow starts", "quick", "slow ends"]


def test_spawned_code_can_catch_what_it_waited_for_and_raise_its_own():
    def catching() -> None:
        try:
            wait_for(failing())
        except ValueError as error:
            raise KeyError("mine") from error

    with pytest.raises(KeyError, match="mine"):
        wait_for(spawn(catching))


def test_context_variables_reach_spawned_code():
    async def inside() -> str:
        return await spawn(here.get)

    here.set("in the test")
    assert wait_for(inside()) == "in the test"


def test_cancelling_ends_spawned_code_where_it_waits():
    seen = []

    def waiting() -> None:
        try:
            wait_for(after(60, None))
        finally:
            seen.append("ended")

    async def cancelled() -> None:
        task = asyncio.create_task(spawn(waiting))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    wait_for(cancelled())
    assert seen == ["ended"]


def test_threads_that_come_first_at_once_share_one_loop():
    code = (
        "import threading, asyncio; from apprentice.envs.wire import waiting; loops = set()\n"
        "gate = threading.Barrier(8)\n"
        "def first(): gate.wait(); loops.add(waiting._loop())\n"
        "threads = [threading.Thread(target=first) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; print(len(loops))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "1"
