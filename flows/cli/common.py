"""Shared by all commands: common options, the process's environment, error messages instead of tracebacks.

Handles Ctrl-C, SIGTERM and SIGHUP: a command ends within seconds, with one message.

Standard streams that never fail a command, even if they are closed, full or lack characters in their encoding.
"""

import contextlib
import errno
import io
import locale
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from apprentice.envs.defaults import debugging, no_collection
from apprentice.flows.runtime.environment_variables import check_certificates, quiet, ready
from apprentice.flows.runtime.prefect_settings import refused
from apprentice.tasks.reporting.errors import Stop, broken_package

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 4.0
"""Seconds for an orderly shutdown."""
EXIT_CODE = 130
SHOW_CURSOR = "\x1b[?25h"

_reported = threading.Event()
_received = threading.Event()


def handle_signals() -> None:
    """Turn each of the signals into a KeyboardInterrupt; one that is ignored, as under nohup, stays ignored."""
    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _interrupt)
    sys.unraisablehook = interrupt_again
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # also works while the main thread is in native code
    threading.Thread(target=_leave_late, args=(reading,), name="interruption", daemon=True).start()


def say_interrupted(remedy: str) -> None:
    """Print one message about the interruption, once."""
    if not _reported.is_set():
        _reported.set()
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            print(f"Interrupted. {remedy}", flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if _received.is_set():  # Ctrl-C twice, or several signals: the process is already ending
        return
    _received.set()
    raise KeyboardInterrupt


def interrupt_again(ignored: Any) -> None:
    """Interrupt again if Python dropped the interruption because it arrived in a finalizer (`__del__`).

    https://docs.python.org/3/library/sys.html#sys.unraisablehook
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt) or ignored.exc_type.__name__ == "TerminationSignal":
        _received.clear()
        # SIGTERM is handled like Ctrl-C; SIGINT may be ignored in this process
        again = signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM)
        threading.Timer(0.05, *again).start()  # after this hook has returned
    else:
        sys.__unraisablehook__(ignored)


def _leave_late(reading: int) -> None:
    """Exit the process a few seconds after the first signal, if it is still running."""
    while os.read(reading, 1)[0] not in SIGNALS:
        pass
    threading.Event().wait(PATIENCE)
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(1, SHOW_CURSOR.encode())  # a progress bar may have hidden it
    say_interrupted("Run the same command again: it resumes from the last finished stage.")
    os._exit(EXIT_CODE)


RECIPE = Annotated[Path, typer.Argument(help="A YAML file, or the name of a recipe of the package, such as laptop.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one field, e.g. --set grpo.max_steps=50. Repeatable.",
    ),
]

KEY = Annotated[
    str,
    typer.Argument(
        help="A key, a revision or a tag from `apprentice run` or its report, or its first 6 characters; "
        "prefix it with namespace/repository@ if it is ambiguous."
    ),
]
STORE = Annotated[Path, typer.Option(help="The folder of artifacts.")]
HUB = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help="Also search this namespace on the Hub; the folder is then its cache."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def looked_at(recipe: Path, overrides: list[str] | None) -> "Recipe":
    """Return the recipe for a command that plays nothing and runs no flow: imports neither Prefect nor what the
    environment plays with.

    Raises Stop.
    """
    quiet()
    from apprentice.envs.catalog import LOOKING
    from apprentice.flows.recipe.loading import load_for

    with no_collection():
        chosen = load_for(LOOKING, recipe, overrides or [])
    _say_whose_code(chosen.environment.path)
    return chosen


def prepared(recipe: Path, overrides: list[str] | None, runs_flow: bool = False) -> "Recipe":
    """Set the variables that libraries read, and return the recipe. Raises Stop.

    Args:
        runs_flow: Begin to start the temporary server that a flow needs: checking a recipe takes as long, since TRL is
            imported for the arguments that it names.
    """
    ready()
    if runs_flow:
        from apprentice.flows.runtime.prefect_server import begin_prefect_server

        begin_prefect_server()
    with no_collection():
        from prefect.context import refresh_global_settings_context

        from apprentice.flows.recipe.loading import load_recipe

        chosen = load_recipe(recipe, overrides or [])
    _say_whose_code(chosen.environment.path)
    # Prefect's results belong next to the artifacts that they name
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
    refresh_global_settings_context()
    return chosen


def _say_whose_code(path: "Path | None") -> None:
    if path is not None:
        from apprentice.tasks.reporting.announce import say

        say(f"This runs the Python code in `{path}`, which the recipe names.")


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
    from apprentice.tasks.reporting.owners import denied

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


GONE = (errno.EPIPE, errno.EIO)
"""The reader has closed the stream, such as `head` or a terminal: not worth reporting."""


class _Lenient(io.FileIO):
    """Drops what cannot be written, and remembers the first error."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failed = self.failed or error
            return len(data)


_kept: list[_Lenient] = []


def use_utf8() -> None:
    """Restart this command in UTF-8 mode if the locale's encoding lacks characters.

    https://docs.python.org/3/library/os.html#utf8-mode
    """
    if sys.flags.utf8_mode or locale.getencoding().lower() in ("utf-8", "utf8"):
        return
    terminal = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    environment = {"PYTHONIOENCODING": f"{terminal}:replace"} | os.environ | {"PYTHONUTF8": "1"}
    os.execve(sys.executable, sys.orig_argv, environment)


def prepare_streams() -> None:
    """Replace standard output and error; reopen closed descriptors, so that no file gets their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            if descriptor == 0:
                sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        raw = _Lenient(descriptor, "w", closefd=False)
        _kept.append(raw)
        was = getattr(sys, name)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=was.encoding if was is not None else "utf-8",
            errors="replace",  # a check mark becomes a question mark
            line_buffering=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


@contextmanager
def report_write_errors() -> Iterator[None]:
    """End a command whose output could not be written with a message and exit code 1."""
    try:
        yield
    except SystemExit as end:
        sys.stdout.flush()
        failed = next((each.failed for each in _kept if each.fileno() == 1), None)
        if not end.code and failed is not None and failed.errno not in GONE:
            print(f"Standard output could not be written: {failed.strerror}.", file=sys.stderr)
            print("The work is saved: run again with a writable output.", file=sys.stderr)
            sys.exit(1)
        raise
