"""How long to retry: a stop condition measured from the first failure, and the wait that a server asks for."""

from email.utils import parsedate_to_datetime
from math import isfinite
from time import monotonic, time

import tenacity
from tenacity.stop import stop_base


class stop_after_failing_for(stop_base):
    """Stop after failing for `seconds`, and at least `attempts` times."""

    def __init__(self, seconds: float, attempts: int = 1):
        self._seconds = seconds
        self._attempts = attempts

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        first = retry_state.__dict__.setdefault("first_failed_at", monotonic())
        return retry_state.attempt_number >= self._attempts and monotonic() - first >= self._seconds


def seconds_in(header: str | None, unit: float = 1.0) -> float | None:
    """Return the seconds of a Retry-After header, in units or as a date; None without a valid one."""
    try:
        seconds = float(header or "") * unit
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header or "").timestamp() - time()
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return max(seconds, 0.0) if isfinite(seconds) else None


def seconds_left(state: tenacity.RetryCallState, patience: float) -> float:
    """Return the seconds of `patience` that are left since the first failure."""
    return max(patience - (monotonic() - getattr(state, "first_failed_at", monotonic())), 0.0)
