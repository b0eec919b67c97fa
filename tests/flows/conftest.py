"""One finished run of the toy recipe, for every test that only reads what a run leaves."""

from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from tests.flows.commands import Ran, apprentice


def pytest_collection_finish(session: pytest.Session) -> None:
    """The run is made beside the first tests, so that nobody waits for it."""
    worker = getattr(session.config, "workerinput", {}).get("workerid", "master")
    if worker in ("master", "gw0") and any("toy_home" in getattr(item, "fixturenames", ()) for item in session.items):
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        Thread(target=finished_run, args=(base if worker == "master" else base.parent,), daemon=True).start()


def finished_run(folder: Path) -> Path:
    """Where the toy recipe ran, once for all of pytest-xdist's workers."""
    home = folder / "toy-run"
    with FileLock(f"{home}.lock"):
        if not (home / "code.txt").exists():
            home.mkdir()
            ran = apprentice(home)
            (home / "out.txt").write_text(ran.out)
            (home / "code.txt").write_text(str(ran.code))
    return home


@pytest.fixture(scope="session")
def toy_home(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of that run. Copy it before you run in it."""
    base = tmp_path_factory.getbasetemp()
    return finished_run(base if worker_id == "master" else base.parent)


@pytest.fixture(scope="session")
def toy_run(toy_home: Path) -> Ran:
    """What that run printed and left."""
    ran = Ran(int((toy_home / "code.txt").read_text()), (toy_home / "out.txt").read_text())
    assert ran.code == 0, ran.out
    return ran
