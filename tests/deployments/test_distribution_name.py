"""`apprentice` is somebody else's project on PyPI, so nothing here tells anybody to install that."""

import re
import subprocess
import tomllib

from tests.flows.commands import ROOT

INSTALLS_A_STRANGERS_CODE = re.compile(
    r"pip install[^\n`]*?(?<![-\w./])apprentice(?![-\w./])|(?<![-\w./])apprentice\\?\["
)
DEPENDS_ON_IT = re.compile(r"""dependencies = \[[^\]]*["']apprentice\b""")


def test_no_page_no_error_and_no_file_that_is_written_installs_a_strangers_code():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        path = ROOT / name
        if name and path.suffix not in (".png", ".txt") and path.is_file() and name != "tests/deployments/" + THIS:
            text = path.read_text(errors="replace")
            assert not INSTALLS_A_STRANGERS_CODE.search(text), name
            assert not DEPENDS_ON_IT.search(text), name


THIS = __file__.rpartition("/")[2]


def test_the_distribution_has_a_name_of_its_own_and_the_command_stays():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "openenv-apprentice"
    assert "apprentice" in project["scripts"]
