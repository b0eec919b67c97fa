"""A Docker daemon for the tests: the one that answers, or else one of their own, which ends with them."""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tenacity

STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


class NoDaemon(Exception):
    """Why no daemon runs here."""


def docker(*arguments: str, timeout: float = 600.0) -> str:
    """Runs `docker …` and returns what it printed; fails with all that it said."""
    done = subprocess.run(
        ["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout[-6000:]}"
    return done.stdout.strip()


def answers() -> bool:
    return shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode


@contextmanager
def running_daemon() -> Iterator[None]:
    """Within the block `docker` has a daemon. Raises NoDaemon."""
    if answers():
        yield
        return
    program = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise NoDaemon("no Docker daemon answers and dockerd is not installed: apt-get install docker.io")
    if os.geteuid() != 0:
        raise NoDaemon("no Docker daemon answers and only root can start one")
    with tempfile.TemporaryDirectory(prefix="docker-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        try:
            process = _start(program, Path(folder))
            try:
                yield
            finally:
                process.terminate()
                process.wait(ENDS_WITHIN_S)
        finally:
            _unmount(folder)


def _unmount(folder: str) -> None:
    """Unmounts what a daemon leaves mounted in its folder: its network namespace, and its data if it did not start."""
    paths = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in reversed([path for path in paths if path.startswith(f"{folder}/")]):
        subprocess.run(["umount", path], check=True)


def _ends_with_its_parent() -> None:
    """Lets Linux terminate this process when the tests are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _start(program: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Starts a daemon whose state is in the folder; images are built, and published ports served, without iptables."""
    command = [program, "--iptables=false", "--ip6tables=false", "--host", f"unix://{folder}/docker.sock"]
    command += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, preexec_fn=_ends_with_its_parent
        )
    until = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda up: not up and process.poll() is None),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(STARTS_WITHIN_S),
        retry_error_callback=lambda _: False,
    )
    if until(answers):
        return process
    process.kill()
    process.wait()
    raise NoDaemon(f"dockerd does not start here: {log.read_text().strip().splitlines()[-1]}")
