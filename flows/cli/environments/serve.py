"""Serves an environment of the catalogue on this machine, until Ctrl-C.

In: its name, a port, how many sessions. Out: nothing; the address is said once it is taken.
"""

import os
import socket
import sys
from contextlib import suppress

from apprentice.envs.catalog import ExtraMissing, NoServer, server_app
from apprentice.envs.serving.process import server_settings
from apprentice.flows.cli.environments.choice import settings_class
from apprentice.tasks.reporting.errors import Stop


def serve_environment(name: str, port: int, max_sessions: int) -> None:
    """Returns after Ctrl-C. Raises Stop where it cannot be served here."""
    import uvicorn

    settings_class(name)
    try:
        app = server_app(name, max_sessions)
    except NoServer as none:
        raise Stop(f"There is nothing to serve: {none}.", "See them: apprentice env list") from None
    except ExtraMissing as missing:
        raise Stop(f"{name} cannot be served here: {missing}", "Install it, and serve again.") from None
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    except OSError as error:
        raise Stop(
            f"Port {port} cannot be had: {error.strerror}.", "Name another one, or --port 0 for a free one."
        ) from (error)
    if sys.flags.hash_randomization:  # a question that is drawn from a set would be another one on this server
        listener.close()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    with listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        print(f"{name} is served at {url}, for {max_sessions} sessions at once. Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(server_settings(app)).run(sockets=[listener])
        print("Stopped.")
