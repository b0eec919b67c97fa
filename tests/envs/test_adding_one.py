"""`envs/README.md` is true: its code is that of number.py, and it leads to an environment that can be learned."""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prefect_database import prefect_home

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
PAGE = (ROOT / "envs" / "README.md").read_text()


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose environments can be edited."""
    root = tmp_path_factory.mktemp("checkout")
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "envs", "apprentice/__init__.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for file in files.stdout.split():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes((ROOT / file).read_bytes())
    for other in ("tasks", "flows", "deployments", "pyproject.toml"):
        (root / other).symlink_to(ROOT / other)
    return root


@pytest.fixture(scope="module")
def added(checkout: Path) -> Path:
    """The page's steps, one after another."""
    copy, run, _publish = blocks("bash")
    assert run == "apprentice run shout.yaml\n"
    said(["bash", "-euc", copy], checkout)
    (checkout / "envs" / "shout.py").write_text(blocks("python")[-1])
    (checkout / "shout.yaml").write_text(blocks("yaml")[0])
    return checkout


def said(command: list[str], checkout: Path) -> str:
    """What a command says, whose `apprentice` is the copy."""
    own = {"PYTHONPATH": str(checkout), "PREFECT_HOME": prefect_home(checkout), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=checkout, env=os.environ | own, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_code_on_the_page_is_that_of_the_file_to_copy():
    code = (ROOT / "envs" / "number.py").read_text()
    assert len(code.splitlines()) <= 90
    *shown, _whole = blocks("python")
    assert len(shown) >= 4
    for block in shown:
        assert block in code, block


def test_one_file_and_one_line_are_all_that_changes(added: Path):
    before, after = (root / "envs" / "catalog.py" for root in (ROOT, added))
    changed = difflib.ndiff(before.read_text().splitlines(), after.read_text().splitlines())
    assert [line for line in changed if line[0] in "+-"] == ['+     "shout": "repeat a text in capitals",']
    for file in (file for file in added.glob("envs/**/*") if file.is_file() and "__pycache__" not in file.parts):
        place = file.relative_to(added)
        if place.name != "shout.py" and place.name != "catalog.py":
            assert file.read_bytes() == (ROOT / place).read_bytes(), place


def test_the_whole_pipeline_runs_on_it(added: Path):
    where = "import apprentice.envs as e; print(*e.__path__)"
    assert said([sys.executable, "-c", where], added).strip() == str(added / "envs")
    out = said([str(BIN / "apprentice"), "run", "shout.yaml"], added)
    report = json.loads((Path(out.strip().splitlines()[-1]) / "report.json").read_text())
    assert list(report["models"]) == ["base", "sft", "grpo"]
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    assert 45 <= report["collect"]["kept"] < 60 == report["collect"]["episodes"]
    assert {row["trait"] for row in report["slices"]} == {"first"}
    rollouts = next((added / "artifacts/datasets/local/shout-rollouts/snapshots").glob("*/rollouts.jsonl"))
    episodes = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert {episode["environment"] for episode in episodes} == {"shout 1"}
    for episode in (each for each in episodes if each["failed_at"] == ""):
        question, said_back = episode["messages"][1]["content"], episode["messages"][2]["tool_calls"][0]["function"]
        assert said_back["name"] == "shout"
        assert (episode["reward"] == 1.0) == (json.loads(said_back["arguments"])["message"] == question.upper())


def test_its_folder_is_made_deployable_by_the_same_tool(added: Path):
    build, *_publish = blocks("bash")[2].splitlines()
    said(build.partition("#")[0].replace("apprentice", str(BIN / "apprentice"), 1).split(), added)
    folder = added / "build/spaces/shout"
    assert "ShoutEnv(EnvClient[Move" in (folder / "client.py").read_text()
    assert 'name = "apprentice-env-shout"' in (folder / "pyproject.toml").read_text()
    if (folder / "uv.lock").exists():
        said([str(BIN / "openenv"), "validate", str(folder)], added)
