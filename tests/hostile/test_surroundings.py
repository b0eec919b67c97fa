"""Surroundings that make a command's life hard: standard streams, locales, proxies, homes, servers that are not there.

Each row is a whole command in a process of its own. It survives, or stops with one line of cause and one of remedy.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.endings import assert_clear_exit

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
APPRENTICE = str(Path(sys.executable).with_name("apprentice"))
TOY = str(ROOT / "deployments/recipes/toy.yaml")
NOWHERE = "/proc/nobody"
"""A folder that cannot be made, by whomever."""
CLOSED = "http://127.0.0.1:9"
"""Nobody listens there."""

Ended = subprocess.CompletedProcess[str]


def shell(words: str, folder: Path, **environment: str) -> Ended:
    """Runs a line of shell in which $A is the command and $TOY the toy recipe."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", words],
        cwd=folder,
        env=os.environ | {"A": APPRENTICE, "TOY": TOY, "HF_HUB_OFFLINE": "1", "HOME": str(folder)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
    )


def assert_survived(ended: Ended) -> None:
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert "Traceback" not in output, output
    assert "Error" not in output, output


LISTING = '"$A" env list'
REFUSED = '"$A" run "$TOY" --set grpo.no_such_field=1'


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        pytest.param(LISTING, {"PYTHONIOENCODING": "latin-1"}, id="standard output in Latin-1"),
        pytest.param(LISTING, {"PYTHONIOENCODING": "ascii"}, id="standard output in ASCII"),
        pytest.param(
            LISTING, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, id="a locale without UTF-8"
        ),
        pytest.param(f"{LISTING} >&-", {}, id="standard output closed"),
        pytest.param(f"{LISTING} 2>&-", {}, id="standard error closed"),
        pytest.param(f"{LISTING} <&- >&- 2>&-", {}, id="all three streams closed"),
        pytest.param(f"{LISTING} | head -1", {}, id="a reader that leaves after one line"),
        pytest.param(LISTING, {"TERM": "dumb"}, id="a dumb terminal"),
        pytest.param(LISTING, {"COLUMNS": "1"}, id="one column"),
        pytest.param(LISTING, {"HOME": NOWHERE}, id="a home that cannot be written"),
        pytest.param(f"unset HOME; {LISTING}", {}, id="no home"),
        pytest.param(LISTING, {"http_proxy": CLOSED, "all_proxy": CLOSED}, id="a dead proxy"),
    ],
)
def test_a_command_survives(words: str, environment: dict[str, str], tmp_path: Path):
    assert_survived(shell(words, tmp_path, **environment))


@pytest.mark.parametrize(
    ("words", "environment", "cause"),
    [
        pytest.param(f"{LISTING} > /dev/full", {}, "No space left", id="standard output full"),
        pytest.param('touch file; "$A" run "$TOY" --runs file', {}, "file", id="--runs on a file"),
        pytest.param('"$A" run "$TOY" --runs /proc/nobody', {}, NOWHERE, id="--runs where nothing can be made"),
        pytest.param('"$A" run "$TOY"', {"PREFECT_API_URL": f"{CLOSED}/api"}, CLOSED, id="a dead Prefect server"),
        pytest.param('"$A" run "$TOY"', {"PREFECT_API_URL": "nonsense"}, "nonsense", id="an address that is none"),
        pytest.param('"$A" status', {"PREFECT_API_URL": f"{CLOSED}/api"}, CLOSED, id="status of a dead Prefect server"),
        pytest.param('"$A" run "$TOY"', {"all_proxy": "nonsense://x"}, "proxy", id="a proxy that is none"),
        pytest.param(REFUSED, {"PYTHONIOENCODING": "ascii"}, "no_such_field", id="a refusal in ASCII"),
        pytest.param('"$A" run none.yaml', {}, "none.yaml", id="a recipe that is not there"),
        pytest.param('"$A" run .', {}, "", id="a folder for a recipe"),
        pytest.param('head -c 100 /dev/urandom > r.yaml; "$A" run r.yaml', {}, "r.yaml", id="a recipe of noise"),
    ],
)
def test_a_command_stops_with_cause_and_remedy(words: str, environment: dict[str, str], cause: str, tmp_path: Path):
    ended = shell(words, tmp_path, **{"PREFECT_API_URL": ""} | environment)
    assert_clear_exit(ended)
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    assert len(lines) >= 2, "a cause, and no remedy"
    assert cause in (ended.stdout + ended.stderr)
    runs = tmp_path / "runs"
    assert not runs.exists() or not [*runs.iterdir()], "a refused run leaves a folder"
