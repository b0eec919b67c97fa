"""Runs the command that serves somebody else's environment, as a child process that never outlives its parent.

In: a command with {port}. Out: the server's URL inside the `with` block. A command that others wrote does not watch for
its parent's end, so it runs below this module, which does.

Run: `python -m apprentice.envs.serving.command PROGRAM ARGUMENT…` (ends with the program, or when stdin closes).
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apprentice.envs.defaults import debugging
from apprentice.envs.serving.child import child_command
from apprentice.envs.serving.health import State, when_ready
from apprentice.envs.serving.process import last_line
from apprentice.envs.wire.server import ServerFailed


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
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            child_command("apprentice.envs.serving.command", program, *arguments),
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=None if debugging() else errors,
            start_new_session=True,  # Ctrl-C reaches only the parent; the child ends with this block
        )
        assert process.stdin is not None
        try:
            url = f"http://127.0.0.1:{port}"

            def state(answers: bool) -> State:
                return "exited" if process.poll() is not None else "ready" if answers else "starting"

            if (found := when_ready(url, state, patience)) != "ready":
                how = f"exited with code {process.returncode}" if found == "exited" else "did not answer in time"
                raise ServerFailed(f"{program} {how}{last_line(errors)}")
            yield url
        finally:
            process.stdin.close()
            process.wait()


def main() -> None:
    """Run the program of the command line; end it, and what it started, when standard input closes."""
    program, *arguments = sys.argv[1:]
    beside = Path(sys.executable).parent / program
    try:
        child = subprocess.Popen(
            [str(beside) if beside.exists() else program, *arguments],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        sys.exit(f"it cannot be run: {error.strerror or error}")
    threading.Thread(target=_end_with_parent, args=(child,), daemon=True).start()
    sys.exit(child.wait())


def _end_with_parent(child: "subprocess.Popen[bytes]") -> None:
    sys.stdin.read()
    for each in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, each)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
            return


if __name__ == "__main__":
    main()
