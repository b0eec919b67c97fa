"""Law 13 in a whole run: GRPO is compared with SFT at its best on the same rollouts, and the page says who wins."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.flows.commands import Ran, apprentice

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(toy_run: Ran, toy_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(toy_home, tmp_path_factory.mktemp("control") / "home"))


@pytest.fixture(scope="module")
def controlled(home: Path) -> Ran:
    """The toy recipe with a control, where the run without one has left its artifacts."""
    ran = apprentice(home, "sft.control=true")
    assert ran.code == 0, ran.out
    return ran


def titles(report: dict[str, Any], state: str) -> list[str]:
    return [stage["title"] for stage in report["stages"] if stage["state"] == state]


def test_grpo_is_judged_against_sft_at_its_best_on_the_same_questions(controlled: Ran):
    report = controlled.report
    assert list(report["models"]) == ["base", "sft", "control", "grpo"]
    assert {model["n"] for model in report["models"].values()} == {40}
    pairs = [(each["from"], each["to"]) for each in report["comparisons"]]
    assert pairs == [("base", "sft"), ("sft", "control"), ("control", "grpo"), ("sft", "grpo")]
    text = (controlled.folder / "report.md").read_text()
    assert "| SFT to its best | 40 |" in text
    assert "GRPO did not pay: +0.0 pp over SFT to its best" in text, "the toy's student learns little"
    assert "GRPO played 32 rollouts with " in text
    assert (controlled.folder / "sft-to-its-best-curves.png").stat().st_size > 1000


def test_a_control_makes_nothing_else_anew_and_is_cached_like_it(controlled: Ran, home: Path):
    first, *others = titles(controlled.report, "ran")
    assert first == "SFT to its best"
    assert others[0].startswith("Evaluation of control in")
    assert [title.partition(":")[0] for title in others[1:]] == ["Comparison and diagnosis", "Gate", "Release"]
    again = apprentice(home, "sft.control=true")
    assert titles(again.report, "ran") == []
    assert "Training took" not in (again.folder / "report.md").read_text()


def test_the_control_learned_from_the_same_rollouts_but_those_held_out(controlled: Ran, home: Path):
    kept = controlled.report["collect"]["kept"]
    held_out = [row for row in controlled.report["lineage"] if row["stage"] == "sft"]
    assert held_out[0]["inputs"] == held_out[1]["inputs"]
    models = (home / "artifacts/models/local/toy-sft/snapshots").glob("*/learned.jsonl")
    assert sorted(len(model.read_text().splitlines()) for model in models) == [kept - max(1, kept // 10), kept]


def test_the_card_of_the_release_names_it(controlled: Ran, home: Path):
    cards = [each.read_text() for each in home.glob("artifacts/models/local/toy-model/snapshots/*/README.md")]
    (release_card,) = [card for card in cards if "SFT to its best" in card]
    assert "GRPO did not pay: +0.0 pp over SFT to its best" in release_card
