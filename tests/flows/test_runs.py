"""Runs are listed and laid side by side; what was not asked the same questions is refused with its reason."""

import hashlib
import json
import os
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from apprentice.flows.cli.app import app
from apprentice.flows.compare import compare_runs, finished, run_named, side_named
from apprentice.tasks.analysis.comparison import with_intervals
from apprentice.tasks.analysis.history import Champions
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact, Evaluation, GrpoCheckpoint, Release, SftCheckpoint, Verdict
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub
from tests.tasks.examined import episodes, evaluation, learned, published

assert hub  # a fixture

TASK = {"name": "echo", "settings": {"words": 3}, "version": "1"}
WEIGHTS = {"parameters": 1, "weights": "w", "promoted": True}


class Judgement(NamedTuple):
    """What judged the models of a run."""

    evaluations: dict[str, Artifact]
    verdict: Verdict
    released: Release


class Runs:
    """A folder of runs as they would have left it; nothing is trained."""

    def __init__(self, folder: Path, store: LocalStore | None = None):
        self.folder = folder / "runs"
        self.store = store or LocalStore(folder / "artifacts", "toy")

    def add(
        self, name: str, rewards: dict[str, list[float]], asked: int = 0, clean: bool = True, **recipe: Any
    ) -> Judgement:
        """A run whose models have these rewards on the questions from `asked` on, with these settings."""
        written = {"name": "toy", "environment": TASK | {"code": name}}
        written |= {"store": {"path": str(self.store.root), "hub": None}} | recipe
        inputs: dict[str, Artifact] = {}
        models = {}
        for model, earned in rewards.items():
            records = [each for each in episodes([0.0] * asked + earned) if each.place >= asked]
            kind = {"sft": SftCheckpoint, "grpo": GrpoCheckpoint}[model]
            log = [{"step": 1, "loss": 1.0, "reward": 0.5}, {"step": 2, "loss": 0.5, "reward": sum(earned)}]
            seen = learned() if clean else learned(("sft", 1, records[0].question))
            files = {"log.json": json.dumps(log), "learned.jsonl": seen, "model": f"{name} {model}"}
            trained = published(self.store, kind, f"{name}-{model}", files, {"parameters": 1})
            settings = {"environment": written["environment"], "spec": {"questions": len(records)}}
            inputs[f"evaluations.{model}"] = evaluation(
                self.store, key_of(name, model), records, model, inputs={"checkpoint": trained}, settings=settings
            )
            models[model] = with_intervals(records)
        inputs["guards.sums.sft"] = evaluation(self.store, key_of(name, "guard"), episodes([0.0]), "sft")
        counts = {"diagnosis": "learned", "contaminated": not clean}
        verdict = published(self.store, Verdict, key_of(name, "verdict"), {"verdict.json": "{}"}, counts, inputs)
        released = published(self.store, Release, name, {"model": name}, WEIGHTS, {"judged": verdict})
        rows = [{"stage": "verdict", "revision": verdict.revision}, {"stage": "release", "revision": released.revision}]
        folder = self.folder / name
        folder.mkdir(parents=True)
        report = {"recipe": "toy", "seed": 1, "models": models, "lineage": rows, "gate": {"promoted": True}}
        report |= {"contamination": {"clean": clean}, "collect": {"episodes": 60, "kept": 50, "cost_usd": 0.25}}
        report |= {"stages": [{"seconds": 2.0, "state": "ran"}, {"seconds": 1.0, "state": "cached"}]}
        report |= {"effort": {"rollouts": 96, "tokens": 1000}, "peak_memory_mb": 512, "is_champion": False}
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
        order = len(list(self.folder.iterdir()))
        os.utime(folder / "report.json", (order, order))
        return Judgement(inputs, verdict, released)

    def compare(self, *names: str) -> dict[str, Any]:
        found, page = compare_runs([side_named(name, self.folder, self.store.root) for name in names], self.folder)
        return found.as_json() | {"page": str(page)}


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
        begun = 4_000_000_000 if given.get("ended") == "" else 1_000_000_000 - number
        os.utime(report, (begun, begun))
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
    assert found["cost"]["A"]["USD"] == "0.2500"
    assert found["cost"]["B"]["stages that ran"] == "1 of 2"
    page = Path(found["page"]).read_text()
    assert "data:image/png;base64," in page
    assert "<h2>Settings that differ</h2>" in page


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
        ({"asked": 1}, "were not asked the same questions: 2 and 2, of which 1 are the same"),
        ({"environment": TASK | {"version": "1.1"}}, r"environment.version is 1 and 1.1"),
        ({"environment": TASK | {"settings": {}}}, r"environment.settings is \{'words': 3\} and \{\}"),
        ({"clean": False}, "two was trained on questions that it is asked"),
    ],
)
def test_what_was_not_asked_the_same_is_refused_with_the_reason(runs: Runs, other: dict[str, Any], says: str):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [1.0, 0.0]}, **other)
    with pytest.raises(Stop, match=says):
        runs.compare("one", "two")
    assert not list(runs.folder.glob("compared-*"))


def test_a_verdict_a_release_and_an_evaluation_are_compared_as_the_run_is_that_made_them(runs: Runs):
    one = runs.add("one", {"sft": [1.0, 0.0] * 20, "grpo": [1.0, 0.0] * 20})
    two = runs.add("two", {"sft": [1.0, 0.0] * 20, "grpo": [1.0, 1.0] * 20})
    of_runs = runs.compare("one", "two")
    for left, right in ((one.verdict.key, two.verdict.revision), ("one", f"local/toy-model@{two.released.key}")):
        found = runs.compare(left, right)
        assert found["comparisons"] == of_runs["comparisons"]
        assert found["models"] == of_runs["models"]
    only = runs.compare(one.evaluations["evaluations.grpo"].key[:8], two.evaluations["evaluations.grpo"].key)
    assert [(each["from"], each["to"], each["delta"]) for each in only["comparisons"]] == [("A grpo", "B grpo", 0.5)]
    assert only["runs"]["B"]["run"] == f"local/toy-evaluation@{two.evaluations['evaluations.grpo'].key}"
    assert "<h2>Settings that differ</h2>" in Path(only["page"]).read_text()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"asked": 1}, "were not asked the same questions: 2 and 2, of which 1 are the same"),
        ({"environment": TASK | {"version": "1.1"}}, r"environment.version is 1 and 1.1"),
        ({"clean": False}, "was trained on questions that it is asked"),
    ],
)
@pytest.mark.parametrize("what", ["verdict", "evaluation"])
def test_an_artifact_that_was_not_asked_the_same_is_refused_with_the_reason(
    runs: Runs, other: dict[str, Any], says: str, what: str
):
    one, two = runs.add("one", {"sft": [1.0, 0.0]}), runs.add("two", {"sft": [1.0, 0.0]}, **other)
    names = [each.verdict.key if what == "verdict" else each.evaluations["evaluations.sft"].key for each in (one, two)]
    with pytest.raises(Stop, match=says):
        runs.compare(*names)


def test_a_model_that_was_judged_by_another_protocol_is_refused(runs: Runs):
    one = runs.add("one", {"sft": [1.0, 0.0]})
    counts = one.evaluations["evaluations.sft"].model_dump(exclude=set(Artifact.model_fields))
    lines = "".join(each.line().decode() for each in episodes([1.0, 0.0]))
    settings = {"environment": TASK}
    other = published(
        runs.store, Evaluation, "e" * 20, {"episodes.jsonl": lines}, counts | {"protocol": "tutorial"}, {}, settings
    )
    with pytest.raises(Stop, match="protocol is parity and tutorial"):
        runs.compare("one", other.key)


def test_an_artifact_in_which_nobody_was_judged_is_refused_with_what_can_be_named(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    published(runs.store, SftCheckpoint, "9" * 20, {"model": ""}, {"parameters": 1})
    with pytest.raises(Stop, match=r"SftCheckpoint, in which no model was judged.*\n.*verdict"):
        runs.compare("one", "9" * 20)
    with pytest.raises(Stop, match="No artifact has the key"):
        runs.compare("one", "8" * 20)


def test_what_is_on_the_hub_is_compared_by_owner_name_and_revision(hub: LocalHub, tmp_path: Path):
    there = Runs(tmp_path / "there", HubStore(tmp_path / "there" / "artifacts", "toy", "team", patience=20.0))
    one = there.add("one", {"sft": [1.0, 0.0] * 20, "grpo": [1.0, 0.0] * 20})
    two = there.add("two", {"sft": [1.0, 0.0] * 20, "grpo": [1.0, 1.0] * 20})
    here = Runs(tmp_path / "here")
    here.add("mine", {"grpo": [1.0, 0.0] * 20})
    found = here.compare("mine", f"team/toy-model@{two.released.revision}", f"team/toy-verdict@{one.verdict.key}")
    deltas = {(each["from"], each["to"]): each["delta"] for each in found["comparisons"]}
    assert deltas == {("A grpo", "B grpo"): 0.5, ("A grpo", "C grpo"): 0.0}
    assert {each.parents[2].name for each in here.store.root.rglob("snapshots/*/model")} == {"toy-grpo", "toy-model"}
    assert not list((here.store.root / "models" / "team").rglob("model")), "no weights are downloaded"
    with pytest.raises(Stop, match=r"No artifact has the key.*on the Hub under team"):
        here.compare("mine", f"team/toy-model@{'0' * 40}")


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


def test_the_commands_print_json_for_machines_and_refuse_with_a_remedy(runs: Runs):
    runs.add("one", {"sft": [1.0, 0.0]})
    runs.add("two", {"sft": [1.0, 1.0]})
    given = ["--runs", str(runs.folder), "--json"]
    listed = CliRunner().invoke(app, ["runs", *given])
    assert [row["run"] for row in json.loads(listed.stdout)] == ["two", "one"]
    compared = CliRunner().invoke(app, ["compare", "one", "last", *given])
    assert Path(json.loads(compared.stdout)["page"]).exists()
    refused = CliRunner().invoke(app, ["compare", "one", "nowhere", *given])
    assert refused.exit_code == 1
    assert "nowhere is no folder of a finished run" in refused.stdout
