"""A local server as a child process that never outlives its parent.

In: a module that serves on a socket handed to it by `serve`. Out: its address while the `with` block lasts.
Why: the environment server and the scripted teacher run on this machine only, on 127.0.0.1 and a port that the system
picks. The child ends when its standard input ends, so it goes even when the parent was killed with -9.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ServerFailed(Exception):
    """A local server ended before it served."""


@contextmanager
def local_server(module: str, *arguments: str) -> Iterator[str]:
    """Runs `python -m module arguments` until the block ends, and yields its URL. Raises ServerFailed."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},  # a question that is drawn from a set is the same on every server
        start_new_session=True,  # Ctrl-C is ours to handle: the child ends when this block does
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise ServerFailed(f"{module} ended with exit code {process.wait()}; its output stands above")
        yield url
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve(app: Any) -> None:
    """Serves an ASGI application on 127.0.0.1 until standard input ends. For the child's side."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    server = web_server(app)
    print(
        f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True
    )  # the listener queues what comes before it serves
    server.run(sockets=[listener])


def web_server(app: Any) -> Any:
    """uvicorn's server for an ASGI application, as sparing as it can be."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,  # sessions that are left open
        )
    )


def leave_with_parent() -> None:
    """Ends this process when its standard input ends. For a thread of the child's."""
    sys.stdin.read()
    os._exit(0)
