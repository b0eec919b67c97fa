"""The retry policy for requests to a teacher's endpoint.

In: a request's error. Out: whether to retry, and the seconds to wait.
"""

from email.utils import parsedate_to_datetime
from math import isfinite
from time import monotonic, time
from typing import Any

import tenacity

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.patience import stop_after_failing_for

LEAST_ATTEMPTS = 3
"""Minimum attempts per request, even if waiting for a rate limit used up the patience."""
LONGEST_WAIT = 60.0
"""Maximum seconds to wait for a Retry-After header."""

_backoff = tenacity.wait_random_exponential(multiplier=0.5, max=20.0)


class Unanswered(Exception):
    """A request without a complete answer; it is retried.

    Attributes:
        was_sent: Whether the endpoint may have received the request, and charged for it.
    """

    def __init__(self, message: str, was_sent: bool = True):
        super().__init__(message)
        self.message = message
        self.was_sent = was_sent


class Redirected(Exception):
    """The endpoint redirects to another address. The request, which contains the key, is not sent there."""


def retrying(patience: float) -> tenacity.AsyncRetrying:
    """Retries a request for `patience` seconds after its first failure."""

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
    """Whether an error may be temporary: no connection, an incomplete answer, 408, 409, 429 or 5xx."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return (error.status_code in (408, 409, 429) or error.status_code >= 500) and not no_quota(error)
    return isinstance(error, openai.APIConnectionError | Unanswered)


def no_quota(error: Any) -> bool:
    return getattr(error, "code", None) == "insufficient_quota"


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: Retry-After plus up to 10%, else exponential backoff with jitter."""
    assert state.outcome is not None
    headers = getattr(getattr(state.outcome.exception(), "response", None), "headers", {})
    seconds = retry_after(headers.get("retry-after"))
    if seconds is None:
        return _backoff(state)
    return seconds + tenacity.wait_random(0.0, max(0.1 * seconds, 0.05))(state)


def retry_after(header: str | None) -> float | None:
    """The seconds of a Retry-After header, 0 to LONGEST_WAIT; None without a valid one."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time()
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    if not isfinite(seconds):
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT)
