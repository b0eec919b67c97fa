"""An empty Prefect database that is up to date: to make one takes 20 s, so it is made once and copied."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import prefect
from filelock import FileLock

BUILD = Path(__file__).parent.parent / "build"


def new_database(path: Path) -> None:
    """Writes an empty database of the installed version of Prefect to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_made(), path)


def prefect_home(folder: Path) -> str:
    """A value for PREFECT_HOME: `folder`/prefect, with an empty database if it has none."""
    database = folder / "prefect" / "prefect.db"
    if not database.exists():
        new_database(database)
    return str(database.parent)


def _made() -> Path:
    made = BUILD / f"prefect-{prefect.__version__}.db"
    BUILD.mkdir(exist_ok=True)
    with FileLock(f"{made}.lock"):
        if not made.exists():
            with TemporaryDirectory(dir=BUILD) as home:
                command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
                subprocess.run(command, env=os.environ | {"PREFECT_HOME": home}, check=True, capture_output=True)
                (Path(home) / "prefect.db").rename(made)
    return made
