"""Machines that share no disk: processes with folders of their own, and the Prefect server that they all know.

In: a folder, a Hub. Out: `Machine`, which runs a command to its end, or answers by hand (see tests.e2e.machine).
Everything that a machine says is kept in its log, so that a token in it is found.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.e2e.cluster import BIN, ROOT, answers, free_port, until
from tests.hub_server import LocalHub

SECRET = os.urandom(8).hex()
TOKENS = {right: f"{right}-{SECRET}" for right in ("write", "read", "bad")}
"""What the server reads ends at the dash; what must not be found anywhere is behind it."""
TOY = ROOT / "deployments" / "recipes" / "toy.yaml"
LIMIT = 600.0
"""Seconds after which a process counts as hanging."""


class Machine:
    """A folder, and the processes that run there, one after the other."""

    def __init__(self, folder: Path, variables: dict[str, str]):
        self.folder = folder
        folder.mkdir(parents=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HF_"))}
        own = {"PREFECT_HOME": str(folder / "prefect"), "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(ROOT)}
        alike = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "DO_NOT_TRACK": "1", "GIT_OPTIONAL_LOCKS": "0"}
        self.env = inherited | own | alike | variables
        self.process: subprocess.Popen[str] | None = None

    @property
    def store(self) -> Path:
        return self.folder / "artifacts"

    def apprentice(self, command: str, *settings: str, code: int = 0) -> str:
        """`apprentice COMMAND` of the toy recipe; returns what it said."""
        return self.run(str(BIN / "apprentice"), command, *toy(*settings), code=code)

    def drive(self, what: str, *arguments: str) -> str:
        """What tests.e2e.machine does."""
        return self.run(sys.executable, "-m", "tests.e2e.machine", what, *arguments)

    def run(self, *command: str, code: int = 0) -> str:
        """A process to its end, and that of all that it started; returns what they said."""
        process = self._begin(*command, stderr=subprocess.STDOUT)
        try:
            said, _ = process.communicate(timeout=LIMIT)
        finally:
            self.end()
        self._log(said)
        assert process.returncode == code, f"{command} ended with {process.returncode}: {said[-3000:]}"
        return said

    def tell(self, do: str, **given: Any) -> None:
        """Begins something by hand; `hear` ends it. The process stays until `end`."""
        if self.process is None:
            with (self.folder / "errors.log").open("ab") as errors:
                self._begin(sys.executable, "-m", "tests.e2e.machine", "hand", stderr=errors)
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self.process.stdin.flush()

    def step(self) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        guard = threading.Timer(LIMIT, self.process.kill)
        guard.start()
        try:
            for line in self.process.stdout:
                self._log(line)
                if line.startswith("= "):
                    return json.loads(line[2:])
        finally:
            guard.cancel()
        raise AssertionError(f"{self.folder.name} ended: {(self.folder / 'errors.log').read_text()[-6000:]}")

    def ask(self, do: str, **given: Any) -> Any:
        self.tell(do, **given)
        return self.step()

    def end(self) -> None:
        """Switches the machine off: SIGKILL for whatever runs; its disk stays."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()
            self.process = None

    def _begin(self, *command: str, stderr: Any) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=pipe,
            stdout=pipe,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        return self.process

    def _log(self, said: str) -> None:
        with (self.folder / "said.log").open("a") as log:
            log.write(said)


def toy(*settings: str) -> list[str]:
    """The toy recipe as arguments of `apprentice`."""
    return [str(TOY), *(part for each in settings for part in ("--set", each))]


@contextmanager
def prefect_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the variables by which machines know a Prefect server that is empty."""
    port = free_port()
    address = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = Machine(folder, address)
    command = (str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port))
    with (folder / "said.log").open("w") as log:
        process = subprocess.Popen(
            command, env=server.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until("Prefect's server answers", lambda: answers(port))
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def machine_of(folder: Path, hub: LocalHub, token: str = "write", **variables: str) -> Machine:
    """A machine with an empty disk that knows a Hub."""
    return Machine(folder, hub.variables(folder / "hf", TOKENS[token]) | variables)


def secrets_in(folder: Path) -> list[str]:
    """The files below a folder in which a token stands."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                tail = b""
                while part := file.read(2**24):
                    if SECRET.encode() in tail + part:
                        found.append(str(path))
                        break
                    tail = part[-len(SECRET) :]
    return found
