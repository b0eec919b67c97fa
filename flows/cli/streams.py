"""Standard streams that do not end a command: closed, full, or in an encoding that has not all characters.

In: the process's descriptors 0, 1, 2. Out: text streams to which writing never raises; what went wrong is said at the
end.
"""

import errno
import io
import locale
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GONE = (errno.EPIPE, errno.EIO)
"""The reader left, such as `head` or a terminal: nobody is missing anything."""


class _Lenient(io.FileIO):
    """Drops what cannot be written, and remembers the first reason."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failed = self.failed or error
            return len(data)


_kept: list[_Lenient] = []


def use_utf8() -> None:
    """Begins this command anew where the locale would have files written in an encoding that has not all characters.

    https://docs.python.org/3/library/os.html#utf8-mode
    """
    if sys.flags.utf8_mode or locale.getencoding().lower() in ("utf-8", "utf8"):
        return
    terminal = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    environment = {"PYTHONIOENCODING": f"{terminal}:replace"} | os.environ | {"PYTHONUTF8": "1"}
    os.execve(sys.executable, sys.orig_argv, environment)


def prepare_streams() -> None:
    """Replaces standard output and standard error; opens what was closed, for a file would take its place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
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
def write_errors_told() -> Iterator[None]:
    """A command that could not say what it was asked for ends in one line about that, and with exit code 1."""
    try:
        yield
    except SystemExit as end:
        if not end.code and (why := _write_error()):
            print(f"Standard output could not be written: {why}.", file=sys.stderr)
            print("What was done is kept: run again with an output that has room.", file=sys.stderr)
            sys.exit(1)
        raise


def _write_error() -> str | None:
    """Why standard output could not be written, where somebody misses it."""
    sys.stdout.flush()
    failed = next((each.failed for each in _kept if each.fileno() == 1), None)
    return None if failed is None or failed.errno in GONE else failed.strerror
