"""Runs a local server as a child process that never outlives its parent.

In: a module that calls `serve`. Out: the server's URL inside the `with` block.
Environment servers and the scripted teacher listen on 127.0.0.1 and a free port. The child exits when its standard
input closes, so it ends even if the parent is killed with SIGKILL.
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

from apprentice.envs.defaults import debugging, old_objects_ignored
from apprentice.envs.serving.child import child_command
from apprentice.envs.wire.server import ServerFailed

log = logging.getLogger(__name__)
SERVES_AT = "apprentice serves at "
"""What a server prints before its address. Other lines are those of modules that it imported."""


@contextmanager
def local_server(module: str, *arguments: str, hash_seed: int = 0) -> Iterator[str]:
    """Run a module that calls `serve` until the block ends, and yield its URL. Raises ServerFailed.

    Args:
        hash_seed: PYTHONHASHSEED; the same for all servers, since a question that is drawn from a set depends on it.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            child_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debugging() else errors,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,  # Ctrl-C reaches only the parent; the child ends with this block
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url, printed = _address(process.stdout)
            if not url:
                code = process.wait()
                why = last_line(errors) or (f": {printed[-1][:300]}" if printed else "")
                raise ServerFailed(f"{module} exited with code {code}{why}")
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _address(output: IO[str]) -> tuple[str, list[str]]:
    """Return the address that a server printed, or an empty text at the end of its output, and its other lines."""
    printed = []
    for line in output:
        before, marked, url = line.partition(SERVES_AT)
        if before.strip():
            log.info("A server printed: %s", before.strip())
            printed.append(before.strip())
        if marked:
            return url.strip(), printed
    return "", printed


def last_line(errors: IO[bytes]) -> str:
    """Return the last line that a server wrote to standard error: the exception that ended it."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 65536))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    messages = [line for line in lines if line and not line.startswith("ERROR:")]  # uvicorn logs its exit last
    return f": {messages[-1][:300]}" if messages else ""


def serve(app: Any) -> None:
    """Serve an ASGI application on 127.0.0.1 until standard input closes. Called in the child process.

    Ignores signals: terminals, systemd and schedulers signal all processes of a run at once, and the parent decides.
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
                print(f"{SERVES_AT}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
                os.dup2(2, 1)  # nobody reads what an environment prints, and a full pipe would stop it

    with old_objects_ignored():
        Child(server_settings(app, log_level="error")).run(sockets=[listener])
    sys.exit(3)  # reached only if it could not start


def server_settings(app: Any, log_level: str = "critical") -> Any:
    import uvicorn

    return uvicorn.Config(
        app,
        log_level=log_level,
        access_log=False,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=2,  # sessions may still be open
    )


def leave_with_parent() -> None:
    """Exit this process when its standard input closes. Runs in a thread of the child process."""
    sys.stdin.read()
    os._exit(0)
