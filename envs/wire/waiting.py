"""One event loop for the process, and a bridge to it from synchronous code.

In: coroutines. Out: their results, returned to synchronous callers.
Why: TRL calls environments synchronously, while OpenEnv sessions and OpenAI clients are asynchronous. A plain thread
blocks while it waits; code spawned on the loop yields to other code. So hundreds of episodes need one thread and no
locks. SQLAlchemy's asyncio support uses the same bridge (`greenlet_spawn`, `await_only`).
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, ParamSpec, TypeVar

import greenlet

T = TypeVar("T")
P = ParamSpec("P")


class _Spawned(greenlet.greenlet):
    """Synchronous code on the loop's thread; its parent is the loop."""


_making = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _making:  # with the cache alone two threads could create two loops
        return _the_loop()


@cache
def _the_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="waiting", daemon=True).start()
    return loop


def start(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start a coroutine on the loop, from any other thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result, in spawned code or in a plain thread. Raises the coroutine's exceptions."""
    here = greenlet.getcurrent()
    if isinstance(here, _Spawned):
        assert here.parent is not None
        return here.parent.switch(coroutine)
    future = start(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C: nobody waits for the result any more
        raise


async def spawn(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run synchronous code on the loop; each `wait_for` in it yields to other code."""
    spawned = _Spawned(call)
    spawned.gr_context = greenlet.getcurrent().gr_context
    yielded = spawned.switch(*args, **kwargs)  # a coroutine to await, or the result once `spawned` is dead
    while not spawned.dead:
        try:
            answer = await yielded
        except BaseException as error:
            yielded = spawned.throw(error)
        else:
            yielded = spawned.switch(answer)
    return yielded
