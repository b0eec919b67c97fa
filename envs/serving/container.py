"""Runs an environment's server in a local Docker container.

In: an image. Out: the server's URL inside the `with` block; the container is removed afterwards.
The server is published on 127.0.0.1 only, and runs as an ordinary user with bounds on memory and processes. A label
names the process that started the container. If that process was killed, the next start of a container removes it.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from apprentice.envs.serving.health import State, when_ready

PORT = 8000
"""The port on which OpenEnv's images listen."""
USER = "1000:1000"
"""User and group of the server, also if its image names others."""
MEMORY = "8g"
"""Memory of a container, which has no swap besides: a browser's session takes about 0.1 GB, other sessions less."""
PROCESSES = 4096
"""Processes and threads of a container: a browser has about 100."""
OWNER = "apprentice.owner"
"""The label with the host and the process that started a container, as the tag of its flow run has them."""


class ContainerFailed(Exception):
    """Docker is not available, or the image's server did not start."""


@contextmanager
def container(image: str, sessions: int, patience: float) -> Iterator[str]:
    """Run the image until the block ends, and yield its URL. Removes containers of killed processes first.

    Args:
        sessions: Passed to the server as MAX_CONCURRENT_ENVS; an image may ignore it.
        patience: Seconds to wait for a server that does not answer.

    Raises ContainerFailed.
    """
    if not _remove_leftovers():
        raise ContainerFailed(f"Docker does not answer here, and {image} needs it (`docker ps` fails)")
    name = f"apprentice-{uuid4().hex[:12]}"
    try:
        yield _started(image, name, sessions, patience)
    finally:
        _remove(name)


def _started(image: str, name: str, sessions: int, patience: float) -> str:
    started = _docker(
        *("run", "--detach", "--name", name, "--label", f"{OWNER}={socket.gethostname()}:{os.getpid()}"),
        *("--publish", f"127.0.0.1::{PORT}", "--user", USER, "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--memory", MEMORY, "--memory-swap", MEMORY),
        *("--pids-limit", str(PROCESSES), "--env", f"MAX_CONCURRENT_ENVS={sessions}", image),
    )
    if started.returncode:
        raise ContainerFailed(f"the image {image} does not start: {_last_words(started)}")
    url = f"http://{_docker('port', name, f'{PORT}/tcp').stdout.strip()}"
    if (state := when_ready(url, lambda answers: _state(name, answers), patience)) == "ready":
        return url
    how = "exited at startup" if state == "exited" else f"did not answer for {patience:.0f} s"
    raise ContainerFailed(f"the server of {image} {how}: {_last_words(_docker('logs', '--tail', '5', name))}")


def _state(name: str, answers: bool) -> State:
    if _docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip() != "true":
        return "exited"
    return "ready" if answers else "starting"


def _remove_leftovers() -> bool:
    """Remove the containers of this host's dead processes; return False if Docker does not answer."""
    columns = f'{{{{.Names}}}} {{{{.Label "{OWNER}"}}}}'
    listed = _docker("ps", "--all", "--filter", f"label={OWNER}", "--format", columns)
    for line in listed.stdout.splitlines():
        name, _, owner = line.partition(" ")
        if _is_dead(owner):
            _remove(name)
    return listed.returncode == 0


def _is_dead(owner: str) -> bool:
    """Return whether a process of this host has ended; a number that another process has got counts as running."""
    host, _, number = owner.rpartition(":")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it runs, as another user
        return False
    return False


def _remove(name: str) -> None:
    _docker("rm", "--force", "--volumes", name)


def _docker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `docker …` to its end, also if it fails: the container may not exist any more."""
    command = ["docker", *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only this process, which then removes the container
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _last_words(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command said last: an exception, rather than how to get help."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    return next((line for line in reversed(lines) if line and "docker run --help" not in line), "it printed nothing")
