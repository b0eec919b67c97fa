"""A whole run in a mixture, with an environment that has several rewards: all is told apart, by both ways into TRL."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from apprentice.flows.recipe.loading import load_recipe
from tests.flows.commands import TOY, command, run_command

pytestmark = pytest.mark.long

PARTS = {
    "say": {"name": "echo", "settings": {"words": 1}},
    "words": {"name": "wordle", "settings": {"candidates": 4}},
}
MIXED = (
    "name=mixed",
    f"environment={json.dumps({'name': 'multi', 'settings': {'parts': PARTS}})}",
    "guards=[]",
    "probe.questions=0",
    "student.build.max_positions=1024",
    "grpo.max_completion_length=200",
    "grpo.reward_weights={words.greens: 0.5}",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ran(home: Path) -> "subprocess.CompletedProcess[str]":
    done = run_command([*command(*MIXED), "--verbose"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def report(ran: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    return json.loads((Path(ran.stdout.strip().splitlines()[-1]) / "report.json").read_text())


def log_of(home: Path, stage: str) -> list[dict[str, Any]]:
    (log,) = (home / "artifacts").glob(f"**/*mixed-{stage}/**/log.json")
    return json.loads(log.read_text())


def test_the_evaluation_has_a_row_for_each_environment(report: dict[str, Any]):
    rows = {row["kind"]: row["n"] for row in report["slices"] if row["trait"] == "environment"}
    assert set(rows) == set(PARTS)
    assert sum(rows.values()) == report["models"]["grpo"]["n"]


def test_grpo_logs_each_reward_of_each_environment(home: Path, report: dict[str, Any]):
    names = {name for entry in log_of(home, "grpo") for name in entry if name.startswith("rewards/")}
    streams = ("say", "words.correct", "words.greens", "words.yellows", "words.repetition")
    assert {f"rewards/{stream}/mean" for stream in streams} <= names


def test_sft_measures_each_environment_on_rows_that_it_does_not_train_on(home: Path, report: dict[str, Any]):
    names = {name for entry in log_of(home, "sft") for name in entry}
    assert {f"eval_{label}_{metric}" for label in PARTS for metric in ("loss", "mean_token_accuracy")} <= names
    assert not [name for name in names if name.endswith(("runtime", "per_second"))]


def test_the_filter_tells_what_it_kept_of_each_environment(ran: "subprocess.CompletedProcess[str]"):
    assert "of say: echo 1: kept" in ran.stdout + ran.stderr
    assert "of words: wordle 1: kept" in ran.stdout + ran.stderr


def test_the_other_way_into_trl_plays_the_mixture_too(home: Path, report: dict[str, Any]):
    one, other = (load_recipe(TOY, [*MIXED, *sets]).grpo for sets in ([], ["grpo.rollouts=rollout_func"]))
    assert one
    assert other
    assert one.in_key() == other.in_key()
    done = run_command(command(*MIXED, "grpo.rollouts=rollout_func", "grpo.max_steps=2"), home)
    assert done.returncode == 0, done.stdout + done.stderr
    again = json.loads((Path(done.stdout.strip().splitlines()[-1]) / "report.json").read_text())
    states = {stage["name"]: stage["state"] for stage in again["stages"]}
    assert (states["sft"], states["grpo"]) == ("cached", "ran")
