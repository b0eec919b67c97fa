"""Counters of this process: episodes, tokens, dollars, retries, reconnects.

In: `count(...)` from any thread. Out: the counts of a block.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Counted = Literal[
    "episodes",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "usage_corrected",
    "retries",
    "reconnects",
    "replayed",
    "waited_s",
    "device_s",
]

_totals: Counter[str] = Counter()
_lock = threading.Lock()


def count(what: Counted, by: float = 1) -> None:
    with _lock:
        _totals[what] += by  # type: ignore[assignment]  # seconds and dollars are floats


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Yield a dictionary that has, after the block, the counts from inside it."""
    before = dict(_totals)
    here: dict[str, float] = {}
    try:
        yield here
    finally:
        here |= {what: now - before.get(what, 0) for what, now in _totals.items() if now != before.get(what, 0)}
