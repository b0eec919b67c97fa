"""The image that Dockerfiles begin with: the public one where it can be pulled, else one of Debian's packages."""

import os
import shlex
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

from tests.docker.daemon import docker

SUITE = "bookworm"
"""Debian's release with the Python of constraints.txt."""
PACKAGES = "ca-certificates,libpython3-dev,passwd,python-is-python3,python3,python3-pip"
STAND_IN = "apprentice-test/python:3.11"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class NoImage(Exception):
    """Why there is no image to begin with."""


def can_pull(image: str) -> bool:
    try:
        return subprocess.run(["docker", "pull", image], capture_output=True, timeout=300).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def python_image(public: str) -> str:
    """Returns the image, or its stand-in, which trusts the certificates of this machine. Raises NoImage."""
    if can_pull(public):
        return public
    if shutil.which("mmdebstrap") is None:
        raise NoImage(f"{public} cannot be pulled, and mmdebstrap is not installed: apt-get install mmdebstrap")
    trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or CERTIFICATES
    hooks = ['rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED', f'cp {shlex.quote(trusted)} "$1"{CERTIFICATES}']
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "root.tar"
        command = ["mmdebstrap", "--variant=apt", f"--include={PACKAGES}"]
        command += [f"--customize-hook={hook}" for hook in hooks]
        made = subprocess.run([*command, SUITE, str(archive)], capture_output=True, text=True)
        if made.returncode:
            raise NoImage(f"{public} cannot be pulled, and mmdebstrap fails: {made.stderr.strip().splitlines()[-1]}")
        docker(
            "import", "--change", f"ENV PIP_CERT={CERTIFICATES} SSL_CERT_FILE={CERTIFICATES}", str(archive), STAND_IN
        )
    return STAND_IN
