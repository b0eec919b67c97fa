"""The image of Prefect's server that compose.yaml describes in its text."""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.docker.images import build
from tests.docker.python_image import can_pull

STAND_IN = "apprentice-test/prefect"


def services(checkout: Path) -> dict[str, Any]:
    return yaml.safe_load((checkout / "deployments/compose.yaml").read_text())["services"]


def server_dockerfile(checkout: Path, folder: Path) -> Path:
    """The text as a file; in compose.yaml a $ is written twice."""
    file = folder / "server.Dockerfile"
    file.write_text(services(checkout)["server"]["build"]["dockerfile_inline"].replace("$$", "$"))
    return file


def server_stand_in(public: str, cpu: str) -> str:
    """Returns Prefect's image where it can be pulled, else one that has uv and Prefect and runs as root as well."""
    if can_pull(public):
        return public
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(f"FROM {cpu}\nUSER root\n")
        return build(Path(folder), STAND_IN)
