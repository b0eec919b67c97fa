"""Classifies failures: retry at once, wait without holding a device, or leave to a person.

In: an exception with its causes. Out: the matching row of the table.
A boundary is the external system that failed; a failure without one is an error in settings or code, which a retry
would only repeat. The clients of environments, teachers and the Hub retry for their whole patience before they raise,
so their failures wait instead of being retried at once.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from pydantic import ValidationError

from apprentice.envs.wire.server import ServerFailed, SessionLost
from apprentice.tasks.reporting.errors import (
    BudgetReached,
    EndpointStop,
    MadeElsewhere,
    ProcessDied,
    Stop,
    TeacherFailed,
    TeacherUnavailable,
)

Remedy = Literal["retry", "wait", "person"]
OOM_MESSAGES = ("memory: you tried to allocate", "CUBLAS_STATUS_ALLOC_FAILED", "gpu_memory_utilization")
"""Out-of-memory messages of exceptions without a type of their own: torch on CPU, cuBLAS, vLLM at startup."""


class Failure(NamedTuple):
    """One row of the table: the boundary, the remedy, and whether an exception belongs to this row."""

    boundary: str
    remedy: Remedy
    is_one: Callable[[BaseException], bool]


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _of(*types: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, types)


def _prefect_is_unavailable(error: BaseException) -> bool:
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError) or type(error).__name__ == "ConcurrencySlotAcquisitionError"


def _hub_is_busy(error: BaseException) -> bool:
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response is not None and (error.response.status_code == 429 or error.response.status_code >= 500)
    return isinstance(error, httpx2.TransportError)


def _hub_refuses(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, HfHubHTTPError) and error.response is not None  # without one, look at its cause


def _memory_ran_out(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # by name: avoids importing torch
        return True
    invalid = isinstance(error, ValidationError)  # a settings error may contain the same words
    known = any(message in str(error) for message in OOM_MESSAGES)
    return isinstance(error, RuntimeError | ValueError) and not invalid and known


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` or one of its causes is an out-of-memory error."""
    return any(map(_memory_ran_out, causes_of(error)))


TABLE = (
    Failure("another run", "wait", _of(MadeElsewhere)),
    Failure("environment", "wait", _of(SessionLost)),
    Failure("Prefect's server", "wait", _prefect_is_unavailable),
    Failure("teacher", "wait", _of(TeacherUnavailable)),
    Failure("teacher", "person", _of(TeacherFailed, BudgetReached, EndpointStop)),
    Failure("hub", "wait", _hub_is_busy),
    Failure("hub", "person", _hub_refuses),
    Failure("server of our own", "retry", _of(ServerFailed)),
    Failure("process of a training", "retry", _of(ProcessDied)),
    Failure("device", "person", _memory_ran_out),
)
SETTINGS = Failure("settings", "person", _of(Stop))
CODE = Failure("code", "person", lambda _: True)


def failure_of(error: BaseException) -> Failure:
    """The row of the first among `error` and its causes that is in the table; `SETTINGS` for any other Stop."""
    rows = (row for cause in causes_of(error) for row in TABLE if row.is_one(cause))
    if found := next(rows, None):
        return found
    return SETTINGS if isinstance(error, Stop) else CODE
