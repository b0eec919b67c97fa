"""The one exception a user is meant to read: what went wrong, and what to do about it."""


class Stop(Exception):
    """Ends a run with a sentence for the user instead of a traceback.

    Args:
        what: What went wrong, in one or two sentences.
        do: What the user can do about it.
    """

    def __init__(self, what: str, do: str):
        super().__init__(f"{what}\n→ {do}")

    def __reduce__(self):
        what, _, do = str(self).partition("\n→ ")
        return Stop, (what, do)


class MadeElsewhere(Stop):
    """Another process makes the same artifact, and here is a device that must not wait for it."""


class ProcessDied(Exception):
    """One of the processes of a training was killed, or ended without a word."""


class TeacherFailed(Exception):
    """The teacher gave no usable turn; the episode is recorded as failed at this boundary."""


class TeacherAway(Exception):
    """The endpoint did not answer one request for longer than one is patient, while it answered others."""


class BudgetReached(Exception):
    """What is left of the budget does not cover the most that the next request could cost."""
