"""The exceptions that several stages share; `Stop` is the one that users read."""

from collections.abc import Iterator
from contextlib import contextmanager


class Stop(Exception):
    """Ends a run with a message for the user instead of a traceback.

    Args:
        cause: What went wrong, in one line.
        remedy: What the user can do about it, in one line.
    """

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause}\n→ {remedy}")
        self.cause, self.remedy = cause, remedy

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show in place of the traceback."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self):
        return Stop, (self.cause, self.remedy)


@contextmanager
def as_stop(kind: type[Exception], cause: str, remedy: str) -> Iterator[None]:
    """Raises Stop in place of an error of that kind.

    Args:
        cause: With {} where the error's own text belongs.
    """
    try:
        yield
    except kind as error:
        raise Stop(cause.replace("{}", str(error)), remedy) from error


class MadeElsewhere(Stop):
    """Another process is making the same artifact, and this process must not wait while it occupies a device."""


class ProcessDied(Exception):
    """A training process was killed or exited without an error."""


class TeacherFailed(Exception):
    """The teacher gave no usable turn; the episode is recorded as failed."""


class TeacherRefused(TeacherFailed):
    """The endpoint refused this question; the teacher had no part in it.

    Attributes:
        is_understood: Whether the refusal says so, as a content filter's does.
    """

    is_understood = False


class EndpointStop(Stop):
    """The teacher's endpoint refuses the account or any request, or does not answer: no episode can be played."""


class TeacherUnavailable(Exception):
    """The endpoint did not answer one request within the teacher's patience, while it answered others."""


class BudgetReached(Exception):
    """The remaining budget does not cover the maximum cost of the next request."""
