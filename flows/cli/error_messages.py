"""Ends a command with an error message instead of a traceback."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from apprentice.envs.defaults import debugging
from apprentice.flows.runtime.environment_variables import check_certificates
from apprentice.flows.runtime.interruption import EXIT_CODE, say_interrupted
from apprentice.flows.runtime.prefect_settings import refused
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.errors import Stop


@contextmanager
def exit_with_message(
    interrupted: str = "Run the same command again: it resumes from the last finished stage.",
) -> Iterator[None]:
    """End the command with an error message; `--debug` also shows the traceback."""
    try:
        yield
    except (SystemExit, typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Stop as stop:
        _fail(stop)
    except Exception as error:
        _fail(_as_stop(error))
    except BaseException as signaled:  # KeyboardInterrupt, or Prefect's exception for SIGTERM
        if debugging():
            traceback.print_exception(signaled)
        say_interrupted(interrupted)
        sys.exit(EXIT_CODE)


def _fail(stop: Stop) -> NoReturn:
    if debugging():
        traceback.print_exc()
    Console(highlight=False, soft_wrap=True).print(f"[bold red]{escape(stop.cause)}[/]\n{escape(stop.remedy)}")
    sys.exit(1)


def _as_stop(error: Exception) -> Stop:
    """Return what to say of an unexpected error, or of a Hub that is unreachable."""
    try:
        check_certificates()
    except Stop as stop:
        return stop
    from huggingface_hub.errors import OfflineModeIsEnabled
    from prefect.exceptions import PrefectHTTPStatusError

    from apprentice.tasks.artifacts.hub_client import is_away
    from apprentice.tasks.files.owners import denied

    if isinstance(error, OfflineModeIsEnabled):
        return Stop("The folder lacks files that are on the Hub, and HF_HUB_OFFLINE is set.", "Unset it and run again.")
    if is_away(error):
        return Stop(f"The Hub does not answer ({type(error).__name__}).", "Run again when it is back.")
    if isinstance(error, PrefectHTTPStatusError) and error.response.status_code in (401, 403):
        return refused(error.response.status_code)
    if stop := broken_package(error):
        return stop
    if isinstance(error, OSError) and (stop := denied(error)) is not None:
        return stop
    message = shorten(" ".join(str(error).split()), 300, placeholder=" …")
    cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return Stop(cause, "This is unexpected: run again with --debug for the traceback, and report it.")
