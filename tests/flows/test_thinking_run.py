"""A whole run of a student that thinks: its thoughts are measured, and the report says what they are worth."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.think import APPRENTICE, recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder."""
    folder = tmp_path_factory.mktemp("thinking")
    whole = recipe("chain_sum", 7, "text", small=True)
    whole["evaluate"] |= {"questions": 8, "vote": 3}
    (folder / "recipe.yaml").write_text(json.dumps(whole))
    done = subprocess.run([APPRENTICE, "run", "recipe.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [page] = folder.glob("runs/*/report.json")
    return page.parent


@pytest.mark.long
def test_the_report_has_each_part_of_the_budget_another_thought_and_a_vote(run: Path):
    found: dict[str, Any] = json.loads((run / "report.json").read_text())["thoughts"]
    assert [each["budget"] for each in found["budgets"]] == [0.0, 0.25, 0.5, 1.0]
    assert found["budgets"][0]["thought"] == 0.0, "none is left where it is forced empty"
    assert all(each["difference"] for each in found["budgets"][1:])
    assert found["swapped"]["n"] == 8
    assert found["vote"]["samples"] == 3
    page = (run / "report.html").read_text()
    assert "What thoughts are worth" in page
    assert "majority of 3 samples" in page


@pytest.mark.long
def test_the_first_table_has_tokens_beside_each_accuracy(run: Path):
    head = next(line for line in (run / "report.md").read_text().splitlines() if line.startswith("|"))
    assert "tokens an answer" in head
