"""Many sessions of one server, reused: work is spread over them, results come back as they finish.

In: items and what to do with each in an environment. Out: results in the order in which they finish.
Why: a reused session is seven times cheaper than a new one, and one caller at a time is all that a session takes.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.session import Session

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class EnvironmentPool:
    """`size` environments, each with a session of its own. Use it as a context manager."""

    def __init__(self, spec: EnvironmentSpec, url: str, size: int):
        self.environments = [spec.make(Session(url)) for _ in range(size)]
        self._free: SimpleQueue[ToolEnvironment] = SimpleQueue()
        for environment in self.environments:
            self._free.put(environment)
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="environment")

    def __enter__(self) -> "EnvironmentPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for environment in self.environments:
            environment._close()

    def map(self, play: Callable[[ToolEnvironment, I], R], items: Iterable[I]) -> Iterator[tuple[I, R]]:
        """Applies `play` to every item in an environment that is free, and yields each as it finishes."""

        def leased(item: I) -> R:
            environment = self._free.get()
            try:
                return play(environment, item)
            finally:
                self._free.put(environment)

        return self.spread(leased, items)

    def spread(self, do: Callable[[I], R], items: Iterable[I]) -> Iterator[tuple[I, R]]:
        """Applies `do` to every item, at most twice `size` of them in flight, and yields each as it finishes."""
        waiting = iter(items)
        running: dict[Future[R], I] = {}
        while True:
            for item in islice(waiting, 2 * len(self.environments) - len(running)):
                running[self._threads.submit(do, item)] = item
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
