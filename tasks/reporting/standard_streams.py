"""Standard streams that never fail a command, even if they are closed, full or lack characters in their encoding."""

import errno
import io
import locale
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
