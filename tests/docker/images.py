"""Builds what the repository describes, from what is committed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docker.daemon import docker
from tests.docker.indexes import pip_index

ROOT = Path(__file__).parents[2]


def checked_out(folder: Path) -> Path:
    """What HEAD has, in a folder that can be imported as `apprentice`."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    checkout = folder / "apprentice"
    checkout.mkdir()
    subprocess.run(["tar", "--extract", "--directory", checkout], input=archive, check=True)
    return checkout


def environment_folder(checkout: Path, name: str, out: Path) -> Path:
    """What the checkout's `apprentice env build` writes."""
    program = "from apprentice.deployments.cli import main; main()"
    command = [sys.executable, "-c", program, "env", "build", name, "--out", str(out)]
    subprocess.run(command, cwd=out, env=os.environ | {"PYTHONPATH": str(checkout.parent)}, check=True)
    return out / name


def default_of(dockerfile: Path, argument: str) -> str:
    found = re.search(rf"^ARG {argument}=(.+)$", dockerfile.read_text(), re.MULTILINE)
    assert found, f"{dockerfile} has no argument {argument}"
    return found[1]


def locked(checkout: Path, package: str) -> str:
    """The version of a package in constraints.txt."""
    lines = (checkout / "constraints.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def build(context: Path, tag: str, dockerfile: Path | None = None, **arguments: str) -> str:
    """Builds an image and returns its tag; the network is this machine's, whose indexes may be on 127.0.0.1."""
    given = [f"--build-arg={name}={value}" for name, value in (pip_index() | arguments).items()]
    file = dockerfile or context / "Dockerfile"
    docker("build", "--network", "host", "--tag", tag, "--file", str(file), *given, str(context))
    return tag
