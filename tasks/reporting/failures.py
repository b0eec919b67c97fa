"""Which failure is mended by what: tried again, waited for without a device, or left to a person.

In: an exception, with what caused it. Out: the row of the table that it falls under.
A boundary is what the failure crossed to reach us; what crossed none is a fault of settings or of code, and trying
again would only repeat it. Waiting is not trying again: the clients of an environment, a teacher and the Hub have
waited for their whole patience before they give up, so a second try at once would find the same outage.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from pydantic import ValidationError

from apprentice.envs.serving.process import ServerFailed
from apprentice.envs.wire.breaker import SessionLost
from apprentice.tasks.reporting.errors import (
    BudgetReached,
    MadeElsewhere,
    ProcessDied,
    Stop,
    TeacherAway,
    TeacherFailed,
)

Remedy = Literal["retry", "wait", "person"]
TOLD = ("memory: you tried to allocate", "CUBLAS_STATUS_ALLOC_FAILED", "gpu_memory_utilization")
"""How full memory is told other than by its type: by the processor's allocator, by cuBLAS, and by vLLM at its start."""


class Failure(NamedTuple):
    """One row: whether an exception is of this kind, what it crossed, what mends it."""

    boundary: str
    remedy: Remedy
    is_one: Callable[[BaseException], bool]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` first."""
    while error is not None:
        yield error
        error = error.__cause__


def _of(*types: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, types)


def _prefect_is_away(error: BaseException) -> bool:
    """Prefect's server gave no answer, for longer than its client tries."""
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError) or type(error).__name__ == "ConcurrencySlotAcquisitionError"


def _hub_is_busy(error: BaseException) -> bool:
    """429 and 5xx of the Hub, and connections to it that were cut."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response is not None and (error.response.status_code == 429 or error.response.status_code >= 500)
    return isinstance(error, httpx2.TransportError)


def _hub_refuses(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, HfHubHTTPError) and error.response is not None  # without one its cause tells


def _memory_ran_out(error: BaseException) -> bool:
    """The device's, or the machine's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported
        return True
    refused = isinstance(error, ValidationError)  # settings that name the same words
    return isinstance(error, RuntimeError | ValueError) and not refused and any(sign in str(error) for sign in TOLD)


def is_full(error: BaseException) -> bool:
    """Whether memory ran out in `error` or in one of its causes."""
    return any(map(_memory_ran_out, _causes(error)))


TABLE = (
    Failure("another run", "wait", _of(MadeElsewhere)),
    Failure("environment", "wait", _of(SessionLost)),
    Failure("Prefect's server", "wait", _prefect_is_away),
    Failure("teacher", "wait", _of(TeacherAway)),
    Failure("teacher", "person", _of(TeacherFailed, BudgetReached)),
    Failure("hub", "wait", _hub_is_busy),
    Failure("hub", "person", _hub_refuses),
    Failure("server of our own", "retry", _of(ServerFailed)),
    Failure("process of a training", "retry", _of(ProcessDied)),
    Failure("device", "person", _memory_ran_out),
)
SETTINGS = Failure("settings", "person", _of(Stop))
CODE = Failure("code", "person", lambda _: True)


def failure_of(error: BaseException) -> Failure:
    """The row for the first of `error` and its causes that is in the table; a Stop without one is of the settings."""
    rows = (row for cause in _causes(error) for row in TABLE if row.is_one(cause))
    if found := next(rows, None):
        return found
    return SETTINGS if isinstance(error, Stop) else CODE
