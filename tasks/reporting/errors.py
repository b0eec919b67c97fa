"""The exceptions that several stages share; `Stop` is the one that users read."""


class Stop(Exception):
    """Ends a run with a message for the user instead of a traceback.

    Args:
        cause: What went wrong, in one line.
        remedy: What the user can do about it, in one line.
    """

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause}\n→ {remedy}")

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show in place of the traceback."""
        return [f"{type(self).__name__}: {self}"]

    @property
    def cause(self) -> str:
        """What went wrong."""
        return str(self).partition("\n→ ")[0]

    @property
    def remedy(self) -> str:
        """What the user can do about it."""
        return str(self).partition("\n→ ")[2]

    def __reduce__(self):
        return Stop, (self.cause, self.remedy)


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
