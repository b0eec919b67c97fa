"""Runs the command that serves somebody else's environment, as a child process that never outlives its parent.

In: a command with {port}. Out: the server's URL inside the `with` block.
"""

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apprentice.envs.defaults import debugging
from apprentice.envs.serving.process import ServerFailed, State, last_line, when_ready


@contextmanager
def command_server(command: str, patience: float) -> Iterator[str]:
    """Run a command that serves an OpenEnv environment on a free port until the block ends, and yield its URL.

    Args:
        command: With {port} where it takes the port. A program of this Python's environment is found there first.
        patience: Seconds to wait until it answers.

    Raises ServerFailed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program, *arguments = shlex.split(command.replace("{port}", str(port)))
    beside = Path(sys.executable).parent / program
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [str(beside) if beside.exists() else program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=None if debugging() else errors,
                start_new_session=True,  # Ctrl-C reaches only the parent; the child ends with this block
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise ServerFailed(f"{program} cannot be run: {error.strerror or error}") from error
        try:
            url = f"http://127.0.0.1:{port}"

            def state(answers: bool) -> State:
                return "exited" if process.poll() is not None else "ready" if answers else "starting"

            if (found := when_ready(url, state, patience)) != "ready":
                how = f"exited with code {process.returncode}" if found == "exited" else "did not answer in time"
                raise ServerFailed(f"{program} {how}{last_line(errors)}")
            yield url
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and those that it started."""
    for each in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
        return


def _die_with_parent() -> None:
    """Let Linux end the process when its parent is killed: a command that others wrote does not watch its input."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
