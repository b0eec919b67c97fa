"""The exceptions that several stages share; `Stop` is the one that users read.

A package that is missing, or that raises where it is imported, is named as itself, with its own error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

from apprentice.envs.defaults import failed_import
from apprentice.tasks.reporting.safe_text import one_line


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


def broken_package(error: BaseException) -> Stop | None:
    """What to say of a package that raised where it was imported; None where no import failed."""
    if (failed := failed_import(error)) is None:
        return None
    package, raised = failed
    name = packages_distributions().get(package, [package.replace("_", "-")])[0]
    said = one_line(f"{type(raised).__name__}: {raised}")[:300].rstrip(".")
    return Stop(
        f"The package {package} is installed, and importing it fails: {said}.",
        f"Install it again (pip install --force-reinstall {name}), or remove it if nothing needs it (pip uninstall "
        f"{name}).",
    )


def imported(package: str, needs: str, install: str) -> Any:
    """The package that `needs` names. Raises Stop where it is missing, or its import fails.

    Args:
        install: What pip installs to have it.
    """
    try:
        return import_module(package)
    except Exception as error:  # whatever its code raises, which is then shown
        name = package.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise Stop(
                f"{needs} needs {name.replace('_', '-')}, which is not installed.",
                f"Install it (pip install '{install}'), or leave {needs} out.",
            ) from None
        said = one_line(f"{type(error).__name__}: {error}")[:300].rstrip(".")
        broken = Stop(f"The package {name} cannot be imported: {said}.", f"Install it again (pip install '{install}').")
        raise broken_package(error) or broken from error


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
