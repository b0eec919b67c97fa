"""A whole run of a game whose old orders are refused in words: every stage plays and scores a last text."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from apprentice.tasks.artifacts.types import ModelName
from tests.flows.commands import BIN, Ran, read, run_command
from tests.served_desk import FILE

pytestmark = pytest.mark.long

RECIPE = {
    "name": "desk",
    "environment": {"path": str(FILE)},
    "teacher": {"scripted_error_rate": 0.1},
    "student": {"build": {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 2, "max_positions": 512}},
    "windows": {"collect": {"size": 200}, "grpo": {"size": 60}, "evaluate": {"size": 60}},
    "sft": {"epochs": 8, "batch_size": 16, "gradient_accumulation": 1, "learning_rate": 3e-3},
    "probe": {"questions": 16, "on_hopeless": "go_on"},
    "grpo": {
        "max_steps": 4,
        "batch_size": 16,
        "gradient_accumulation": 1,
        "num_generations": 8,
        "learning_rate": 1e-4,
        "max_completion_length": 64,
    },
    "evaluate": {"questions": 40, "max_new_tokens": 32, "batch_size": 40},
    "gate": {"at_least": 0.0},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ran(home: Path) -> Ran:
    (home / "desk.yaml").write_text(yaml.safe_dump(RECIPE))
    done = run_command([str(BIN / "apprentice"), "run", "desk.yaml"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    return Ran(done.returncode, done.stdout)


def rows(home: Path, repository: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(home / f"artifacts/datasets/local/desk-{repository}", name)]


def texts(row: dict[str, Any]) -> bool:
    """Whether an episode ends with a text of the assistant."""
    return row["messages"][-1]["role"] == "assistant" and not row["messages"][-1].get("tool_calls")


def test_what_sft_learns_from_has_both_endings_and_every_text_is_right(ran: Ran, home: Path):
    kept = rows(home, "kept-rollouts", "kept.jsonl")
    endings = [row["messages"][-1]["content"] for row in kept if texts(row)]
    assert 0 < len(endings) < len(kept)
    assert all(text.startswith("I cannot refund it: it is ") for text in endings)
    assert "no tool call" not in ran.report["collect"]["causes"]


def test_the_student_answers_in_words_and_its_right_texts_count(ran: Ran, home: Path):
    """Greedy, after SFT and after GRPO: a student that never says no has at most half of them right."""
    assert ran.report["models"][ModelName.SFT]["format_compliance"] > 0.9
    assert ran.report["models"][ModelName.GRPO]["accuracy"] > 0.6
    right = [row for row in rows(home, "evaluation", "episodes.jsonl") if row["reward"] == 1.0]
    refused = [row for row in right if texts(row)]
    assert 0 < len(refused) < len(right)
    assert all(row["valid"] and not row["unfinished"] and row["causes"] == [] for row in refused)


def test_grpo_plays_texts_and_is_rewarded_for_them(ran: Ran, home: Path):
    """What it keeps of its rollouts to be read."""
    (completions,) = home.glob("artifacts/models/local/desk-grpo/snapshots/*/completions.jsonl")
    said = [json.loads(line) for line in completions.read_text().splitlines()]
    rewarded = [each for each in said if each["reward"] == 1.0 and each["said"].startswith("I cannot refund it")]
    assert rewarded
    assert all(each["calls"] == ["look_up({})"] for each in rewarded)
