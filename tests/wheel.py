"""The project as `pip install` lays it out: its wheel, built from the files of the checkout and unpacked."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def files_of_the_checkout() -> list[str]:
    """The files that are tracked or could be, tests and documentation left out."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [file for file in listed if not file.startswith(("tests/", "docs/")) and (ROOT / file).is_file()]


def unpacked(folder: Path) -> Path:
    """Builds the wheel below `folder` and returns where its files are: to be named in PYTHONPATH."""
    for file in files_of_the_checkout():
        (folder / "source" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / file).write_bytes((ROOT / file).read_bytes())
    command = [sys.executable, "-c", "import setuptools.build_meta as b; print(b.build_wheel('..'))"]
    subprocess.run(command, cwd=folder / "source", check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"
