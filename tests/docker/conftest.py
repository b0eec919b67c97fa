"""Images, each built once a session.

The tests are skipped where no daemon starts, or no image with Python can be had to begin with.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docker.daemon import NoDaemon, docker, running_daemon
from tests.docker.images import build, checked_out, default_of, environment_folder, locked
from tests.docker.indexes import torch_index
from tests.docker.python_image import NoImage, python_image
from tests.docker.server_image import server_dockerfile, server_stand_in


@pytest.fixture(scope="session")
def daemon() -> Iterator[None]:
    try:
        with running_daemon():
            yield
    except NoDaemon as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checked_out(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def python(daemon: None, checkout: Path) -> str:
    """What stands for PYTHON_IMAGE."""
    try:
        image = python_image(default_of(checkout / "deployments/docker/cpu.Dockerfile", "PYTHON_IMAGE"))
    except NoImage as why:
        pytest.skip(str(why))
    assert docker("run", "--rm", image, "python", "--version").startswith("Python 3.11.")
    return image


@pytest.fixture(scope="session")
def environment_image(python: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Returns an environment's image; builds it when it is first asked for."""
    out = tmp_path_factory.mktemp("built")

    @cache
    def image(name: str) -> str:
        folder = environment_folder(checkout, name, out)
        return build(folder, f"apprentice-test/{name}", PYTHON_IMAGE=python)

    return image


@pytest.fixture(scope="session")
def cpu(python: str, checkout: Path) -> str:
    with torch_index(locked(checkout, "torch")) as index:
        torch = {"TORCH_INDEX_URL": index} if index else {}
        dockerfile = checkout / "deployments/docker/cpu.Dockerfile"
        return build(checkout, "apprentice-test/cpu", dockerfile, PYTHON_IMAGE=python, **torch)


@pytest.fixture(scope="session")
def server(cpu: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of Prefect's server; Prefect's own, where it cannot be pulled, is one of ours as root."""
    dockerfile = server_dockerfile(checkout, tmp_path_factory.mktemp("server"))
    begin = server_stand_in(default_of(dockerfile, "PREFECT_IMAGE"), cpu)
    return build(checkout, "apprentice-test/server", dockerfile, PREFECT_IMAGE=begin)
