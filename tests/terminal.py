"""A command in a terminal of its own: a pseudo-terminal whose foreground process group it is, as a person's is.

In: a command. Out: what it printed, its exit code, which of its processes are still there.
"""

import os
import pty
import select
import signal
import time
from pathlib import Path

import psutil

CTRL_C = b"\x03"


class Terminal:
    """A context manager; what is still running at its end is killed."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str] | None = None):
        self.output = ""
        self._known: dict[int, psutil.Process] = {}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # tests in the background ignore some of them
                signal.signal(each, signal.SIG_DFL)
            os.chdir(cwd)
            os.execvpe(command[0], command, os.environ | (environment or {}))
        self.code: int | None = None

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.family()
        for process in [*self._known.values()]:
            if process.is_running():
                process.kill()
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def family(self) -> list[psutil.Process]:
        """The processes below the command that were ever seen and still run."""
        if self.code is None:
            for child in psutil.Process(self.pid).children(recursive=True):
                self._known.setdefault(child.pid, child)
        return [each for each in self._known.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def until(self, text: str, seconds: float = 300.0) -> None:
        """Returns when the command has printed `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, f"{text!r} did not come within {seconds:.0f} s:\n{self.output}"
            assert self._read() or text in self.output, f"it ended before {text!r}:\n{self.output}"

    def ended(self, seconds: float) -> int:
        """Waits for the command's end; returns its exit code, negative for a signal."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            assert time.monotonic() < deadline, f"not ended after {seconds:.0f} s:\n{self.output}"
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        while self._read():
            pass
        return self.code

    def _read(self) -> bool:
        """Takes what was printed meanwhile; False where nobody prints any more."""
        if not select.select([self._fd], [], [], 0.2)[0]:
            return self.code is None
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # all who had the terminal have closed it
            time.sleep(0.05)
            return False
        self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
