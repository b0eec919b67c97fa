"""What ends a command from outside: Ctrl-C, SIGTERM, SIGHUP, each heard once and never longer than some seconds.

In: signals. Out: a KeyboardInterrupt in the main thread. Where that does not end the process soon, such as in native
code or in a library that waits, the process is left at once. That costs nothing that a kill would not: artifacts are
written whole, and what this process started ends with it.
"""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 4.0
"""Seconds that the orderly end may take."""
EXIT_CODE = 130
SHOW_CURSOR = "\x1b[?25h"

_said = threading.Event()
_came = threading.Event()


def handle_signals() -> None:
    """Makes each of the signals an interruption; one that is ignored, as under nohup, stays so."""
    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _interrupt)
    sys.unraisablehook = interrupt_again
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # written to also while the main thread is in native code
    threading.Thread(target=_leave_late, args=(reading,), name="interruption", daemon=True).start()


def say_interrupted(remedy: str) -> None:
    """The one line about it."""
    if not _said.is_set():
        _said.set()
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            print(f"Interrupted. {remedy}", flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if _came.is_set():  # a person who presses twice, or several signals at once: it is being ended already
        return
    _came.set()
    raise KeyboardInterrupt


def interrupt_again(ignored: Any) -> None:
    """Interrupts once more where Python dropped it, because it came while an object was cleaned away (`__del__`).

    https://docs.python.org/3/library/sys.html#sys.unraisablehook
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt) or ignored.exc_type.__name__ == "TerminationSignal":
        _came.clear()
        # SIGTERM, which is heard as Ctrl-C is: a shell may have had this process ignore SIGINT
        again = signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM)
        threading.Timer(0.05, *again).start()  # once this hook, too, has returned
    else:
        sys.__unraisablehook__(ignored)


def _leave_late(reading: int) -> None:
    """Ends the process some seconds after the first signal, if it is still there."""
    while os.read(reading, 1)[0] not in SIGNALS:
        pass
    threading.Event().wait(PATIENCE)
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(1, SHOW_CURSOR.encode())  # a bar may have hidden it
    say_interrupted("Run the same command again: it goes on from the last finished stage.")
    os._exit(EXIT_CODE)
