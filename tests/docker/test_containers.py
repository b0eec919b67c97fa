"""A run's container: who reaches it, what it may use, and who removes it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from apprentice.envs.serving.container import OWNER, ContainerFailed, container
from tests.docker.daemon import docker
from tests.docker.images import ROOT

pytestmark = pytest.mark.long


@pytest.fixture
def echo(environment_image: Callable[[str], str]) -> str:
    return environment_image("echo")


@contextmanager
def holder(image: str) -> Iterator["subprocess.Popen[str]"]:
    """A run with a container, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.docker.holder", image],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        yield process


def containers_of(pid: int) -> list[str]:
    owner = f"{OWNER}={socket.gethostname()}:{pid}"
    return docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={owner}").split()


def inspected(name: str) -> dict[str, Any]:
    return json.loads(docker("inspect", name))[0]


def test_a_container_is_reached_at_127_0_0_1_only(echo: str):
    with container(echo, sessions=2, patience=60) as url:
        port = urlsplit(url).port
        open_to = [each.laddr for each in psutil.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        assert {each.ip for each in open_to if each and each.port == port} == {"127.0.0.1"}


def test_a_container_runs_as_an_ordinary_user_without_rights_and_with_bounds(echo: str):
    with container(echo, sessions=2, patience=60):
        (name,) = containers_of(os.getpid())
        assert docker("exec", name, "id", "-u") == "1000"
        status = docker("exec", name, "cat", "/proc/1/status")
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        host = inspected(name)["HostConfig"]
        assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (8 * 2**30, 8 * 2**30, 4096)
        assert "MAX_CONCURRENT_ENVS=2" in inspected(name)["Config"]["Env"]
    assert containers_of(os.getpid()) == []


def test_the_image_names_a_numeric_user_itself(echo: str):
    assert docker("inspect", "--format", "{{.Config.User}}", echo) == "1000:1000"


def test_the_next_run_removes_a_killed_runs_container_and_no_live_runs(echo: str):
    with holder(echo) as live, holder(echo) as killed:
        killed.kill()
        killed.wait()
        assert [inspected(each)["State"]["Running"] for each in containers_of(killed.pid)] == [True]
        with container(echo, sessions=2, patience=60):
            assert containers_of(killed.pid) == []
            assert [inspected(each)["State"]["Running"] for each in containers_of(live.pid)] == [True]
        live.stdin.close()  # type: ignore[union-attr]
        live.wait()
        assert containers_of(live.pid) == []


def test_a_bound_holds_and_a_container_that_ended_by_it_is_told(echo: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apprentice.envs.serving.container.MEMORY", "16m")
    with (
        pytest.raises(ContainerFailed, match=r"the server of .*echo exited at startup"),
        container(echo, sessions=2, patience=60),
    ):
        pass
    assert containers_of(os.getpid()) == []


def test_an_image_that_is_nowhere_is_told_with_dockers_reason(daemon: None):
    nowhere = "127.0.0.1:9/nowhere:1"
    with (
        pytest.raises(ContainerFailed, match=r"the image 127.0.0.1:9/nowhere:1 does not start: .*refused"),
        container(nowhere, sessions=2, patience=60),
    ):
        pass
