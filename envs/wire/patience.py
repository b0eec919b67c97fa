"""A stop condition for retries, measured from the first failure instead of the start of the call."""

from time import monotonic

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
