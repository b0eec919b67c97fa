"""A local server as a child process that never outlives its parent.

In: a module that serves on a socket handed to it by `serve`. Out: its address while the `with` block lasts.
Why: the environment server and the scripted teacher run on this machine only, on 127.0.0.1 and a port that the system
picks. The child ends when its standard input ends, so it goes even when the parent was killed with -9.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any

from apprentice.envs.defaults import debugging


class ServerFailed(Exception):
    """A local server ended before it served."""


@contextmanager
def local_server(module: str, *arguments: str) -> Iterator[str]:
    """Runs `python -m module arguments` until the block ends, and yields its URL. Raises ServerFailed."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debugging() else errors,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},  # a question that is drawn from a set is the same on every server
            start_new_session=True,  # Ctrl-C is ours to handle: the child ends when this block does
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                code = process.wait()
                raise ServerFailed(f"{module} ended with exit code {code}{_last_line(errors)}")
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _last_line(errors: IO[bytes]) -> str:
    """The end of what a server wrote to standard error: the exception that ended it."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 65536))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if line and not line.startswith("ERROR:")]  # uvicorn's word that it ends
    return f": {told[-1][:300]}" if told else ""


def serve(app: Any) -> None:
    """Serves an ASGI application on 127.0.0.1 until standard input ends, whatever signals come. For the child's side.

    A terminal, systemd and schedulers send signals to all processes of a run at once; here its parent decides.
    """
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()

    class Child(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    Child(server_settings(app, log_level="error")).run(sockets=[listener])
    sys.exit(3)  # it could not start: else it ends with its standard input


def server_settings(app: Any, log_level: str = "critical") -> Any:
    """uvicorn's settings for an ASGI application, as sparing as it can be."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level=log_level,
        access_log=False,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,  # sessions that are left open
    )


def leave_with_parent() -> None:
    """Ends this process when its standard input ends. For a thread of the child's."""
    sys.stdin.read()
    os._exit(0)
