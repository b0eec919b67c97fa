"""Which failed requests to a teacher's endpoint are sent again, and when.

In: what a request ended with. Out: whether trying again may help, and the seconds until then.
"""

from email.utils import parsedate_to_datetime
from math import isfinite
from time import monotonic, time
from typing import Any

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.patience import stop_after_failing_for

LEAST_ATTEMPTS = 3
"""Times that a request is sent before it is given up: one that waits long for its turn is not given up at once."""
LONGEST_WAIT = 60.0
"""Seconds: a Retry-After beyond it is cut to it."""

_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=20.0)


class Unanswered(Exception):
    """A request that got no whole answer; it is sent again.

    Attributes:
        was_sent: Whether the endpoint may have read it, and charged for it.
    """

    def __init__(self, message: str, was_sent: bool = True):
        super().__init__(message)
        self.message = message
        self.was_sent = was_sent


class Redirected(Exception):
    """The endpoint names another address; the request, and the key in it, are not sent there."""


def retrying(patience: float) -> tenacity.AsyncRetrying:
    """Sends a request again for `patience` seconds from its first failure on."""

    def wait(state: tenacity.RetryCallState) -> float:
        since = monotonic() - getattr(state, "first_failed_at", monotonic())
        return min(_wait(state), max(patience - since, 0.0))

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(may_pass),
        wait=wait,
        stop=stop_after_failing_for(patience, attempts=LEAST_ATTEMPTS),
        before_sleep=lambda _: count("retries"),
        reraise=True,
    )


def may_pass(error: BaseException) -> bool:
    """Whether trying again may help: no connection, no whole answer, 408, 409, 429 or 5xx."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return (error.status_code in (408, 409, 429) or error.status_code >= 500) and not no_quota(error)
    return isinstance(error, openai.APIConnectionError | Unanswered)


def no_quota(error: Any) -> bool:
    return getattr(error, "code", None) == "insufficient_quota"


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: what Retry-After says and up to a tenth more, else exponential with jitter."""
    assert state.outcome is not None
    headers = getattr(getattr(state.outcome.exception(), "response", None), "headers", {})
    seconds = retry_after(headers.get("retry-after"))
    if seconds is None:
        return _backoff(state)
    return seconds + tenacity.wait_random(0.0, max(0.1 * seconds, 0.05))(state)


def retry_after(told: str | None) -> float | None:
    """Seconds, 0 to LONGEST_WAIT; None where the header says nothing that can be."""
    if not told:
        return None
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time()
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    if not isfinite(seconds):
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT)
