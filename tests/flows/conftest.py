"""One finished run of the toy recipe, for every test that only reads what a run leaves."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.flows.commands import Ran, apprentice


@pytest.fixture(scope="session")
def toy_home(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder in which the toy recipe runs once for all of pytest-xdist's workers. Copy it before you run in it."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    home = shared / "toy-run"
    with FileLock(f"{home}.lock"):
        if not home.exists():
            home.mkdir()
            ran = apprentice(home)
            (home / "out.txt").write_text(ran.out)
            (home / "code.txt").write_text(str(ran.code))
    return home


@pytest.fixture(scope="session")
def toy_run(toy_home: Path) -> Ran:
    """What that run printed and left."""
    ran = Ran(int((toy_home / "code.txt").read_text()), (toy_home / "out.txt").read_text())
    assert ran.code == 0, ran.out
    return ran
