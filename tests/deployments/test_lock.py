"""The locked versions, from which `make run` and `make test` set themselves up."""

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent.parent
OLDEST = "3.11.0"


def test_every_locked_version_installs_on_the_oldest_python_that_the_project_takes():
    """Where one does not, pip looks for another resolution without end."""
    takes = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert OLDEST in takes
    assert "3.10.99" not in takes
    wants = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        locked = Requirement(line)
        try:
            installed = metadata(locked.name)
        except PackageNotFoundError:  # for a GPU
            continue
        assert installed["Version"].partition("+")[0] in locked.specifier, f"{line}, and {installed['Version']} is here"
        wants[line] = SpecifierSet(installed["Requires-Python"] or "")
    assert len(wants) > 200
    assert [line for line, python in wants.items() if OLDEST not in python] == []
