"""Runs are listed and laid side by side; what was not asked the same questions is refused with its reason."""

import hashlib
import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from apprentice.flows.cli.app import app
from apprentice.flows.compare import compare_runs
from apprentice.flows.finished_runs import finished, run_named
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact, Evaluation, GrpoCheckpoint, Release, SftCheckpoint, Verdict
from apprentice.tasks.evaluate import rates
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.rates import with_intervals
from tests.tasks.evaluations import episodes, evaluation, published

TASK = {"name": "echo", "settings": {"words": 3}, "version": "1"}
WEIGHTS = {"parameters": 1, "weights": "w", "promoted": True}


class Runs:
    """A folder of runs as they would have left it; nothing is trained."""

    def __init__(self, folder: Path):
        self.folder = folder / "runs"
        self.store = LocalStore(folder / "artifacts", "toy")

    def add(
        self,
        name: str,
        rewards: dict[str, list[float]],
        first_question: int = 0,
        clean: bool = True,
        protocol: str = "parity",
        **recipe: Any,
    ) -> None:
        """A run whose models have these rewards on the questions from `first_question` on, with these settings."""
        written = {"name": "toy", "environment": TASK | {"code": name}}
        written |= {"store": {"path": str(self.store.root), "hub": None}} | recipe
        inputs: dict[str, Artifact] = {}
        models = {}
        for model, earned in rewards.items():
            records = [each for each in episodes([0.0] * first_question + earned) if each.place >= first_question]
            kind = {"sft": SftCheckpoint, "grpo": GrpoCheckpoint}[model]
            trained = published(self.store, kind, f"{name}-{model}", {"model": f"{name} {model}"}, {"parameters": 1})
            counts = {"model": model, "protocol": protocol, "cost_usd": 0.0} | rates(records, PROTOCOLS["parity"])
            files = {"episodes.jsonl": "".join(each.line().decode() for each in records)}
            given = {"checkpoint": trained}, {"environment": written["environment"]}
            key = key_of(name, model)
            inputs[f"evaluations.{model}"] = published(self.store, Evaluation, key, files, counts, *given)
            models[model] = with_intervals(records)
        inputs["guards.sums.sft"] = evaluation(self.store, key_of(name, "guard"), episodes([0.0]), "sft")
        counts = {"diagnosis": "learned", "contaminated": not clean}
        verdict = published(self.store, Verdict, key_of(name, "verdict"), {"verdict.json": "{}"}, counts, inputs)
        released = published(self.store, Release, name, {"model": name}, WEIGHTS, {"judged": verdict})
        rows = [{"stage": "verdict", "revision": verdict.revision}, {"stage": "release", "revision": released.revision}]
        folder = self.folder / name
        folder.mkdir(parents=True)
        report = {"recipe": "toy", "seed": 1, "models": models, "lineage": rows, "gate": {"promoted": True}}
        report |= {"contamination": {"clean": clean}, "is_champion": False}
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
        order = len(list(self.folder.iterdir()))
        os.utime(folder / "report.json", (order, order))

    def compare(self, *names: str) -> dict[str, Any]:
        return compare_runs([run_named(name, self.folder) for name in names], self.store.root)


def key_of(*names: str) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:20]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_the_newest_run_stands_first_and_one_is_the_champion(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [0.0, 0.0], "grpo": [1.0, 1.0]})
    Champions(runs.store).promote(runs.store.tagged(Release, "one"), None)  # type: ignore[arg-type]
    (runs.folder / "unfinished").mkdir()
    rows = [run.row() for run in finished(runs.folder)]
    shown = [(row["run"], row["model"], row["champion"]) for row in rows]
    assert shown == [("two", "grpo", "no"), ("one", "sft", "yes")]
    assert rows[0]["accuracy"].startswith("100.0%")
    assert rows[1]["page"] == str(runs.folder / "one" / "report.html")
    assert run_named("last", runs.folder).folder.name == "two"


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"ended": "2026-11-27T10:00:00.000+00:00"}, {"ended": "2026-11-27T10:00:00.001+00:00"}),
        ({"ended": "2026-11-27T09:59:00.000+00:00"}, {"ended": "2026-11-27T11:00:00.000+01:00"}),
        ({"name": "toy-seed1-20261126-235959-999"}, {"name": "toy-seed0-20261127-000000-000"}),
        ({"name": "a-b-seed1-20261126-101500-120"}, {"name": "b", "ended": "2026-11-28T10:00:00.000+00:00"}),
        ({"name": "toy-seed0-20261126-101500-120", "ended": "2026-11-26T10:16:00+00:00"}, {"name": "toy", "ended": ""}),
    ],
)
def test_a_copy_of_the_runs_has_the_order_of_the_runs(older: dict[str, str], newer: dict[str, str], runs: Runs):
    """Whatever the times of the copied files: here the older run's files are the newer ones."""
    for number, given in ((2, older), (3, newer)):
        folder = runs.folder / given.get("name", f"run{number}")
        runs.add(folder.name, {"sft": [1.0, 0.0]})
        report = folder / "report.json"
        report.write_text(json.dumps(json.loads(report.read_text()) | {"ended": given.get("ended")}))
        start = 4_000_000_000 if given.get("ended") == "" else 1_000_000_000 - number
        os.utime(report, (start, start))
    names = [run.folder.name for run in finished(runs.folder)]
    assert names == [newer.get("name", "run3"), older.get("name", "run2")]


@pytest.mark.parametrize("name", ["last", "nowhere"])
def test_a_run_that_is_not_there_is_named(runs: Runs, name: str):
    with pytest.raises(Stop, match=r"finished run.*\n.*apprentice runs"):
        run_named(name, runs.folder)


def test_runs_are_paired_question_by_question_and_corrected_together(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0, 1.0, 0.0] * 10, "grpo": [1.0, 0.0, 1.0, 0.0] * 10}, sft={"epochs": 2})
    runs.add("two", {"sft": [1.0, 0.0, 1.0, 0.0] * 10, "grpo": [1.0, 1.0, 1.0, 0.0] * 10}, sft={"epochs": 3})
    found = runs.compare("one", "two")
    pairs = {(each["from"], each["to"]): each for each in found["comparisons"]}
    assert set(pairs) == {("A sft", "B sft"), ("A grpo", "B grpo")}
    gain = pairs["A grpo", "B grpo"]
    assert gain["delta"] == pytest.approx(0.25)
    assert gain["ci"][0] > 0
    assert gain["p_holm"] == pytest.approx(2 * gain["p_value"])
    settings = {row["setting"]: (row["A"], row["B"]) for row in found["settings"]}
    assert settings == {"sft.epochs": ("2", "3"), "environment.code": ('"one"', '"two"')}


def test_a_comparison_ends_with_a_sentence_of_who_is_better_and_what_differs(runs: Runs):
    runs.add("one", {"grpo": [1.0] * 20 + [0.0] * 20}, sft={"epochs": 2})
    runs.add("two", {"grpo": [1.0] * 36 + [0.0] * 4}, sft={"epochs": 3})
    runs.add("three", {"grpo": [1.0] * 21 + [0.0] * 19}, sft={"epochs": 2})
    better = runs.compare("one", "two")["sentence"]
    assert better.startswith("B grpo is better than A grpo by +40.0 pp (+")
    assert better.endswith("more than noise. Their recipes differ in `sft.epochs` (2, 3).")
    assert runs.compare("two", "one")["sentence"].startswith("A grpo is better than B grpo by +40.0 pp (-")
    assert "A grpo and B grpo cannot be told apart: +2.5 pp" in runs.compare("one", "three")["sentence"]


def test_runs_that_ended_with_different_models_are_compared_by_those(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [1.0, 0.0], "grpo": [1.0, 1.0]})
    pairs = [(each["from"], each["to"]) for each in runs.compare("one", "two")["comparisons"]]
    assert pairs == [("A sft", "B sft"), ("A sft", "B grpo")]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            {"first_question": 1},
            "not evaluated on the same questions by the same rules: they differ in the list of questions",
        ),
        ({"environment": TASK | {"version": "1.1"}}, r"environment.version is 1 and 1.1"),
        ({"environment": TASK | {"settings": {}}}, r"environment.settings is \{'words': 3\} and \{\}"),
        ({"protocol": "tutorial"}, "protocol is parity and tutorial"),
        ({"clean": False}, "two was trained on questions of its evaluation"),
    ],
)
def test_what_was_not_asked_the_same_is_refused_with_the_reason(runs: Runs, other: dict[str, Any], says: str):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [1.0, 0.0]}, **other)
    with pytest.raises(Stop, match=says):
        runs.compare("one", "two")


def test_a_run_is_not_compared_with_itself(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    with pytest.raises(Stop, match="different runs"):
        runs.compare("one", "last")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_shows_whole_names_that_can_be_copied(runs: Runs, columns: int, monkeypatch: pytest.MonkeyPatch):
    name = "laptop-seed20-20261123-133548-794"
    runs.add(name, {"sft": [1.0, 0.0]})
    shown = StringIO()
    monkeypatch.setattr(announce, "console", Console(file=shown, width=columns))
    CliRunner().invoke(app, ["runs", "--runs", str(runs.folder)])
    (row,) = (line for line in shown.getvalue().splitlines() if line.startswith(name))
    assert "sft 50.0% (" in row
    assert ("2026-11-23 13:35" in row) == (columns == 120), "recipe, seed and time have no room beside the name in 80"


def test_the_command_shows_what_differs_and_ends_with_the_sentence(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    runs.add("one", {"grpo": [1.0] * 20 + [0.0] * 20}, sft={"epochs": 2})
    runs.add("two", {"grpo": [1.0] * 36 + [0.0] * 4}, sft={"epochs": 3})
    shown = StringIO()
    monkeypatch.setattr(announce, "console", Console(file=shown, width=200))
    done = CliRunner().invoke(app, ["compare", "one", "last", "--runs", str(runs.folder)])
    assert done.exit_code == 0, done.output
    text = " ".join(shown.getvalue().split())
    assert "sft.epochs 2 3" in text
    assert "A grpo B grpo +40.0 pp" in text
    assert text.endswith("more than noise. Their recipes differ in sft.epochs (2, 3).")


def test_the_commands_print_json_for_machines_and_refuse_with_a_remedy(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [1.0, 1.0]})
    given = ["--runs", str(runs.folder), "--json"]
    listed = CliRunner().invoke(app, ["runs", *given])
    assert [row["run"] for row in json.loads(listed.stdout)] == ["two", "one"]
    compared = json.loads(CliRunner().invoke(app, ["compare", "one", "last", *given]).stdout)
    assert compared.keys() == {"runs", "settings", "models", "comparisons", "broken", "sentence"}
    assert compared["runs"]["B"]["run"] == "two"
    refused = CliRunner().invoke(app, ["compare", "one", "nowhere", *given])
    assert refused.exit_code == 1
    assert "nowhere is no folder of a finished run" in refused.stdout
