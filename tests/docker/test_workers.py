"""The images of deployments/: Prefect's server, and a worker that runs the toy recipe, set up as in compose.yaml.

The image for GPUs is not built: its packages take 10 GB, and nothing here could run it. Its pins are resolved.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import tenacity

from tests.docker.daemon import docker
from tests.docker.images import default_of, locked
from tests.docker.server_image import services

pytestmark = pytest.mark.long

BOUNDS = ("--memory", "6g", "--pids-limit", "2048")
IN_COMPOSE = "http://127.0.0.1:4200/api"
"""The server as its workers reach it: they share its network."""


class Deployed:
    """A server and containers that share its network, and a volume for the store."""

    def __init__(self, cpu: str, server: str, command: list[str]):
        self._cpu = cpu
        self._names: list[str] = []
        self._prefix = f"apprentice-test-{uuid4().hex[:8]}"
        self.store = f"{self._prefix}-store"
        self.server = f"{self._prefix}-server"
        self._start(self.server, "--publish", "127.0.0.1::4200", *BOUNDS, server, *command)
        address = docker("port", self.server, "4200/tcp")
        is_up = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.HTTPError),
            wait=tenacity.wait_fixed(0.2),
            stop=tenacity.stop_after_delay(120),
            reraise=True,
        )
        is_up(lambda: httpx.get(f"http://{address}/api/health", trust_env=False).raise_for_status())

    def start_worker(self) -> str:
        """Starts what the image starts, and returns the container's name."""
        name = f"{self._prefix}-worker"
        self._start(name, *self._shared(), "--env", "PREFECT_WORKER_QUERY_SECONDS=1", self._cpu)
        return name

    def run(self, *command: str) -> str:
        return docker("run", "--rm", *self._shared(), self._cpu, *command)

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", *self._names)
        docker("volume", "rm", self.store)

    def _shared(self) -> list[str]:
        environment = {"PREFECT_API_URL": IN_COMPOSE, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        given = [f"--env={name}={value}" for name, value in environment.items()]
        return [f"--network=container:{self.server}", f"--volume={self.store}:/store", *BOUNDS, *given]

    def _start(self, name: str, *arguments: str) -> None:
        self._names.append(name)
        docker("run", "--detach", "--name", name, *arguments)


@pytest.fixture
def deployed(cpu: str, server: str, checkout: Path) -> Iterator[Deployed]:
    running = Deployed(cpu, server, services(checkout)["server"]["command"])
    yield running
    running.remove()


def test_the_toy_recipe_runs_in_a_worker_that_the_image_starts(deployed: Deployed, checkout: Path):
    deployed.run(*services(checkout)["setup"]["command"])
    worker = deployed.start_worker()
    assert docker("exec", worker, "id", "-u") == "1000"
    started = docker("exec", worker, "cat", "/proc/1/cmdline").replace("\0", " ")
    assert "prefect worker start --pool cpu" in started
    all_here = ("--param", 'gpu=""')  # no second worker, whose every stage would import torch anew
    deployed.run("prefect", "deployment", "run", "retrain/toy", *all_here, "--watch", "--watch-timeout", "500")
    report = json.loads(deployed.run("sh", "-c", "cat /store/runs/*/report.json"))
    pools = {stage["name"]: stage["pool"] for stage in report["stages"]}
    assert (pools["collect"], pools["sft"], pools["grpo"]) == ("cpu", "cpu", "cpu")


def test_the_pins_of_the_image_for_gpus_resolve_together(checkout: Path, tmp_path: Path):
    dockerfile = checkout / "deployments/docker/gpu.Dockerfile"
    lock = (checkout / "constraints.txt").read_text().splitlines()
    overrides = tmp_path / "overrides.txt"
    overrides.write_text("\n".join(line for line in lock if line.startswith(("fastapi==", "numpy=="))))
    vllm = f"vllm=={default_of(dockerfile, 'VLLM_VERSION')}"
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--dry-run", "--target", str(tmp_path / "target"), "--override", str(overrides)]
    command += ["--constraint", "constraints.txt", vllm, "--requirements", "pyproject.toml"]
    command += ["--extra", "lora", "--extra", "qlora", "--extra", "liger"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    chosen = {line.removeprefix(" + ") for line in done.stderr.splitlines()}
    packages = ("torch", "trl", "transformers", "fastapi", "numpy", "bitsandbytes", "liger-kernel")
    assert chosen > {vllm, *(f"{each}=={locked(checkout, each)}" for each in packages)}
