"""An environment's server in a Docker container of this machine, by OpenEnv's own provider.

In: an image. Out: the server's address while the `with` block lasts; afterwards the container is gone, whatever
happened. Only a run that is killed with -9 leaves it behind: its name begins with "apprentice-".
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from openenv.core.containers.runtime.providers import LocalDockerProvider

LOOK_S = 2.0
"""Seconds between two looks whether a container that does not answer yet still runs."""


class ContainerFailed(Exception):
    """There is no Docker here, or the image's server did not start."""


class _Docker(LocalDockerProvider):
    """Under a name that is known before Docker is asked: what starts by halves can be removed."""

    def __init__(self):
        super().__init__()
        self.name = f"apprentice-{uuid4().hex[:12]}"

    def _generate_container_name(self, image: str) -> str:
        return self.name  # the provider's own is no name where the image has a digest


@contextmanager
def container(image: str, sessions: int, patience: float) -> Iterator[str]:
    """Runs the image until the block ends, and yields its URL.

    Args:
        sessions: Asked of the server as MAX_CONCURRENT_ENVS; an image need not heed it.
        patience: Seconds after which a server that does not answer is given up.

    Raises ContainerFailed.
    """
    try:
        docker = _Docker()
    except RuntimeError as error:
        raise ContainerFailed(f"Docker does not answer here, and {image} needs it (`docker version` fails)") from error
    try:
        yield _started(docker, image, sessions, patience)
    finally:
        with suppress(subprocess.TimeoutExpired):  # it may take longer to end than the provider waits
            docker.stop_container()
        _ask("rm", "--force", docker.name)


def _started(docker: _Docker, image: str, sessions: int, patience: float) -> str:
    try:
        url = docker.start_container(image, env_vars={"MAX_CONCURRENT_ENVS": str(sessions)})
    except RuntimeError as error:
        cause = error.__cause__
        said = cause.stderr if isinstance(cause, subprocess.CalledProcessError) else str(error)
        raise ContainerFailed(f"the image {image} does not start: {_last_of(said)}") from error
    given_up = time.monotonic() + patience
    while True:
        try:
            docker.wait_for_ready(url, min(LOOK_S, patience))
            return url
        except TimeoutError as error:
            running = _ask("inspect", "--format", "{{.State.Running}}", docker.name)
            if running == "true" and time.monotonic() < given_up:
                continue
            how = f"did not answer for {patience:.0f} s" if running == "true" else "ended at its start"
            raise ContainerFailed(
                f"the server of {image} {how}: {_last_of(_ask('logs', '--tail', '5', docker.name))}"
            ) from error


def _ask(*arguments: str) -> str:
    """What `docker …` prints, also where it fails: the container may be gone."""
    asked = subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return asked.stdout.strip()


def _last_of(said: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "it printed nothing")
