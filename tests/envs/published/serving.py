"""Serves an application from a thread of this process: many servers cost no more than the imports of one."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from apprentice.envs.serving.process import server_settings


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The URL of the application, on 127.0.0.1 and a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_settings(app))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
