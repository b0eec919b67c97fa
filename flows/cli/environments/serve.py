"""Serves an environment of the catalogue on this machine until Ctrl-C.

In: its name, a port, the maximum number of sessions. Out: nothing; prints the URL once it listens.
"""

import os
import socket
import sys
from contextlib import suppress

from apprentice.envs.catalog import ExtraMissing, NoServer, server_app
from apprentice.envs.serving.process import server_settings
from apprentice.flows.cli.environments.choice import name_of, settings_class
from apprentice.tasks.reporting.errors import Stop


def serve_environment(name: str, port: int, max_sessions: int) -> None:
    """Serve the environment until Ctrl-C. Raises Stop if it cannot be served here."""
    import uvicorn

    name = name_of(name)
    settings_class(name)
    try:
        app = server_app(name, max_sessions)
    except NoServer as none:
        raise Stop(f"There is nothing to serve: {none}.", "List them: apprentice env list") from None
    except ExtraMissing as missing:
        raise Stop(f"{name} cannot be served here: {missing}", "Install it, and try again.") from None
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    except OSError as error:
        raise Stop(
            f"Port {port} is not available: {error.strerror}.", "Choose another one, or --port 0 for a free one."
        ) from error
    if sys.flags.hash_randomization:  # a question drawn from a set must be the same on every server
        listener.close()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    with listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        print(f"Serving {name} at {url}, up to {max_sessions} sessions. Stop it with Ctrl-C.", flush=True)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(server_settings(app)).run(sockets=[listener])
        print("Stopped.")
