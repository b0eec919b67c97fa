"""Ends a command within seconds at Ctrl-C, SIGTERM or SIGHUP, with one message."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

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
