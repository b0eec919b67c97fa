"""A real environment server on a port of its own that tests kill, stop and start again."""

import signal
import socket
import subprocess
import sys
import time

from apprentice.envs.wire.server import EnvironmentServer


class RestartableServer:
    """A Reasoning Gym server that stays at one address."""

    CODE = (
        "import sys, uvicorn; from openenv.core.env_server.http_server import create_fastapi_app;"
        "from apprentice.envs.reasoning_gym.game import *;"
        "app = create_fastapi_app("
        "ReasoningGymEnvironment, ReasoningGymAction, ReasoningGymObservation, max_concurrent_envs=int(sys.argv[2]));"
        "uvicorn.run(app, host='127.0.0.1', port=int(sys.argv[1]), log_level='critical')"
    )

    def __init__(self, capacity: int = 64):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start(capacity)

    def start(self, capacity: int = 64) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", self.CODE, str(self.port), str(capacity)])
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server ended at its start")

    def at(self, **settings: float) -> EnvironmentServer:
        return EnvironmentServer(url=self.url, **settings)  # type: ignore[arg-type]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
