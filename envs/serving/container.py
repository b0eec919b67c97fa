"""Runs an environment's server in a local Docker container, with OpenEnv's provider.

In: an image. Out: the server's URL inside the `with` block; the container is removed afterwards. Only a run that is
killed with SIGKILL leaves one behind; its name begins with "apprentice-".
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from openenv.core.containers.runtime.providers import LocalDockerProvider

LOOK_S = 2.0
"""Seconds between two checks that a container which does not answer yet is still running."""


class ContainerFailed(Exception):
    """Docker is not available, or the image's server did not start."""


class _Docker(LocalDockerProvider):
    """Chooses the container's name up front, so that a container which fails to start can be removed."""

    def __init__(self):
        super().__init__()
        self.name = f"apprentice-{uuid4().hex[:12]}"

    def _generate_container_name(self, image: str) -> str:
        return self.name  # the provider's own name is invalid if the image has a digest


@contextmanager
def container(image: str, sessions: int, patience: float) -> Iterator[str]:
    """Run the image until the block ends, and yield its URL.

    Args:
        sessions: Passed to the server as MAX_CONCURRENT_ENVS; an image may ignore it.
        patience: Seconds to wait for a server that does not answer.

    Raises ContainerFailed.
    """
    try:
        docker = _Docker()
    except RuntimeError as error:
        raise ContainerFailed(f"Docker does not answer here, and {image} needs it (`docker version` fails)") from error
    try:
        yield _started(docker, image, sessions, patience)
    finally:
        with suppress(subprocess.TimeoutExpired):  # stopping may take longer than the provider waits
            docker.stop_container()
        _ask("rm", "--force", docker.name)


def _started(docker: _Docker, image: str, sessions: int, patience: float) -> str:
    try:
        url = docker.start_container(image, env_vars={"MAX_CONCURRENT_ENVS": str(sessions)})
    except RuntimeError as error:
        cause = error.__cause__
        output = cause.stderr if isinstance(cause, subprocess.CalledProcessError) else str(error)
        raise ContainerFailed(f"the image {image} does not start: {_last_line(output)}") from error
    given_up = time.monotonic() + patience
    while True:
        try:
            docker.wait_for_ready(url, min(LOOK_S, patience))
            return url
        except TimeoutError as error:
            running = _ask("inspect", "--format", "{{.State.Running}}", docker.name)
            if running == "true" and time.monotonic() < given_up:
                continue
            how = f"did not answer for {patience:.0f} s" if running == "true" else "exited at startup"
            raise ContainerFailed(
                f"the server of {image} {how}: {_last_line(_ask('logs', '--tail', '5', docker.name))}"
            ) from error


def _ask(*arguments: str) -> str:
    """Return the output of `docker …`, even if it fails: the container may not exist any more."""
    completed = subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return completed.stdout.strip()


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
