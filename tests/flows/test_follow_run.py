"""An order desk gets from nothing to its floor by the closing advice alone. Whole commands, a real training."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.advice import DESK, Situation, written
from tests.flows.commands import BIN, run_command

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "recipe.yaml").write_text(written(Situation(DESK, {"sft.epochs": 2}, ()), seed=0))
    return folder


@pytest.fixture(scope="module")
def said(home: Path) -> str:
    done = run_command([str(BIN / "apprentice"), "run", "recipe.yaml", "--follow", "2"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reports(home: Path, said: str) -> list[dict[str, Any]]:
    """In the order in which the runs ended."""
    found = [json.loads(each.read_text()) for each in home.glob("runs/*/report.json")]
    return sorted(found, key=lambda report: report["ended"])


def test_the_chain_reaches_the_floor_by_the_field_that_was_named(said: str, reports: list[dict[str, Any]]):
    first, last = reports[0], reports[-1]
    assert first["ending"]["change"]["cause"] == "not learned yet"
    assert first["ending"]["change"]["field"] == "sft.epochs"
    assert first["models"]["sft"]["accuracy"] < 0.1
    assert last["gate"]["floor"]["holds"]
    assert last["models"]["sft"]["accuracy"] > first["models"]["sft"]["accuracy"] + 0.3
    assert "Following: sft.epochs: 16 (2 now)" in " ".join(said.split())


def test_what_no_change_touches_is_made_once(reports: list[dict[str, Any]]):
    states = {stage["name"]: stage["state"] for stage in reports[1]["stages"]}
    assert {states[name] for name in ("questions", "student", "collect", "filter_rollouts")} == {"cached"}
    assert states["sft"] == "ran"


def test_the_best_model_is_confirmed_on_questions_that_no_choice_saw(said: str):
    assert "On 100 questions that no choice saw" in " ".join(said.split())


def test_the_list_of_runs_shows_the_chain(home: Path, reports: list[dict[str, Any]]):
    listed = json.loads(run_command([str(BIN / "apprentice"), "runs", "--json"], home).stdout)
    newest, *_, oldest = listed
    assert (newest["follows"], newest["change"]) == (oldest["run"], "sft.epochs: 16 (2 now)")
    assert (oldest["follows"], oldest["change"]) == ("", "")
