"""Servers of others in virtual environments of their own, and commands of ours beside them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import tenacity

BUILD = Path(__file__).parents[2] / "build"
VLLM = BUILD / "vllm/venv/bin"
BIN = Path(sys.executable).parent
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""vLLM's variables."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def serving(command: list[str], url: str, log: Path, patience: float = 90.0, **variables: str) -> Iterator[str]:
    """Run a server until the block ends; yield its address when `url` answers."""
    with log.open("w") as out:
        server = subprocess.Popen(command, env=os.environ | variables, stdout=out, stderr=subprocess.STDOUT)
        try:
            for attempt in tenacity.Retrying(stop=tenacity.stop_after_delay(patience), wait=tenacity.wait_fixed(0.3)):
                with attempt:
                    assert server.poll() is None, log.read_text()[-2000:]
                    httpx.get(url).raise_for_status()
            yield url
        finally:
            server.terminate()
            server.wait(30)


def ran(home: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A command that has run in `home`, with a Prefect of its own."""
    given = os.environ | {"PREFECT_HOME": str(home / "prefect"), "ENDPOINT_API_KEY": "any"} | variables
    return subprocess.run(command, cwd=home, env=given, capture_output=True, text=True)


def said(home: Path, *command: str, **variables: str) -> str:
    """What a command prints that runs in `home`, with a Prefect of its own, and ends well."""
    done = ran(home, *command, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
