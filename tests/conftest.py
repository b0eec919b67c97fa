"""What the tests share: one environment server for the session, and small tasks."""

import gc
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

os.environ.update(
    {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from tests.prefect_database import new_database

ssl.create_default_context = cache(ssl.create_default_context)  # each client would read all certificates, for 17 ms

SERVER = ("apprentice.envs.serving.serve", "reasoning_gym", "--max-sessions", "64")
TASKS = {
    "chain_sum": EnvironmentSpec(
        name="reasoning_gym",
        settings={
            "dataset": "chain_sum",
            "config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2},
        },
    ),
    "palindromes": EnvironmentSpec(
        name="reasoning_gym",
        settings={"dataset": "palindrome_generation", "config": {"min_length": 3, "max_length": 5}},
    ),
}


def pytest_collection_finish() -> None:
    """A full garbage collection, which statsmodels and transformers ask for, then leaves out what was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=list(TASKS))
def task(request: pytest.FixtureRequest) -> EnvironmentSpec:
    """Every task that a law must hold for."""
    return TASKS[request.param]


@pytest.fixture
def chain_sum() -> EnvironmentSpec:
    return TASKS["chain_sum"]


@pytest.fixture(scope="session")
def server() -> Iterator[EnvironmentServer]:
    """A Reasoning Gym server with room for 64 sessions; `make mutants` has one that stands."""
    standing = os.environ.get("STANDING_SERVER")
    with nullcontext(standing) if standing else local_server(*SERVER) as url:
        yield EnvironmentServer(url=url, sessions=16)


@pytest.fixture
def work(tmp_path: Path, server: EnvironmentServer) -> RunContext:
    """A run's work over an empty store and the session's server."""
    return RunContext(
        LocalStore(tmp_path / "artifacts", project="toy"),
        StandingServers({"reasoning_gym": server}, None),
    )


@pytest.fixture
def context(work: RunContext, tmp_path: Path) -> StageContext:
    """A running stage with empty folders."""
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    out.mkdir()
    scratch.mkdir()
    return StageContext(work, "0" * 20, out, scratch)


@pytest.fixture
def hears_sigint() -> Iterator[None]:
    """A shell that puts the tests into the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server of the tests' own."""
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("prefect")
    new_database(folder / "prefect-test.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefect.testing.utilities.mkdtemp", lambda: str(folder))
        with prefect_test_harness(server_startup_timeout=300):
            yield
