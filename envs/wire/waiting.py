"""The one event loop on which everything waits, for code that is written to wait in place.

In: coroutines. Out: their results, to synchronous callers.
Why: an environment is synchronous, as TRL calls it, while an OpenEnv session and an OpenAI client are asynchronous. A
plain thread that waits blocks. Code that was spawned on the loop is switched away from while it waits, so hundreds of
episodes need one thread and no locks: the bridge of SQLAlchemy's asyncio support (`greenlet_spawn`, `await_only`).
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
    with _making:  # a cache alone would let two threads that come first make two loops
        return _the_loop()


@cache
def _the_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="waiting", daemon=True).start()
    return loop


def start(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Starts a coroutine on the loop, from any other thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, to spawned code as to a plain thread. Raises what it raises."""
    here = greenlet.getcurrent()
    if isinstance(here, _Spawned):
        assert here.parent is not None
        return here.parent.switch(coroutine)
    future = start(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C came while it ran: nobody waits for it any more
        raise


async def spawn(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs synchronous code on the loop; each `wait_for` in it gives the loop to others."""
    spawned = _Spawned(call)
    spawned.gr_context = greenlet.getcurrent().gr_context
    asked = spawned.switch(*args, **kwargs)
    while not spawned.dead:
        try:
            answer = await asked
        except BaseException as error:
            asked = spawned.throw(error)
        else:
            asked = spawned.switch(answer)
    return asked
