"""What a run of the toy recipe leaves: its report, its page, its artifacts. Real servers, client and trainers."""

import json
import sqlite3
from pathlib import Path

from apprentice.tasks.settings.spec import Window
from tests.flows.commands import Ran, lines, read


def test_trackio_has_the_reports_tables_its_picture_and_what_the_last_model_said(toy_run: Ran):
    """Once, beside the curves of the trainings."""
    with sqlite3.connect(toy_run.folder.parent.parent / "artifacts" / "trackio" / "toy.db") as tracked:
        rows = tracked.execute("SELECT run_name, step, metrics FROM metrics WHERE run_name LIKE 'report %'").fetchall()
        traces = tracked.execute("SELECT messages, metadata FROM traces ORDER BY trace_index").fetchall()
    assert {name for name, _, _ in rows} == {f"report toy seed 0 {verdict_of(toy_run)[:8]}"}
    logged = {name: value for _, _, metrics in rows for name, value in json.loads(metrics).items()}
    models = logged["models"]["_value"]
    assert [row["model"] for row in models] == ["base", "sft", "grpo"]
    assert logged["accuracy/grpo"] == toy_run.report["models"]["grpo"]["accuracy"]
    assert {"differences", "kinds of failure", "slices"} <= logged.keys()
    assert logged["picture/accuracy"]["_type"] == "trackio.image"
    assert f"{toy_run.folder.name}/report.html" in logged["report"]["_value"]
    assert len(traces) == 40
    assert [each["role"] for each in json.loads(traces[0][0])[:2]] == ["system", "user"]
    statuses = [json.loads(metadata)["status"] for _, metadata in traces]
    assert statuses == sorted(statuses), "what is wrong comes first"


def verdict_of(run: Ran) -> str:
    return next(row["key"] for row in run.report["lineage"] if row["stage"] == "verdict")


def test_a_run_ends_with_a_report_for_people_and_one_for_machines(toy_run: Ran):
    report = toy_run.report
    assert list(report["models"]) == ["base", "sft", "grpo"]
    for model in report["models"].values():
        assert model["n"] == 40
        assert set(model) >= {"format_compliance", "accuracy", "mean_score", "ci"}
        assert all(model["ci"][rate][0] <= model[rate] <= model["ci"][rate][1] for rate in model["ci"])
    assert [(each["from"], each["to"]) for each in report["comparisons"]] == [
        ("base", "sft"),
        ("sft", "grpo"),
    ]
    assert set(report["comparisons"][0]) >= {"delta_accuracy", "ci", "p_value"}
    (level,) = report["probe"]["rungs"]
    assert level["n"] == 16
    assert level["ci"][0] <= level["accuracy"] == round(16 * level["accuracy"]) / 16 <= level["mean_score"]
    assert report["probe"]["says"].startswith("**The task is ")
    assert set(report["grpo"]) >= {"reward_initial", "reward_final", "delta", "diagnosis"}
    assert report["collect"]["episodes"] == 60 == report["collect"]["kept"] + sum(report["collect"]["causes"].values())
    assert report["collect"]["causes"]["wrong answer"] > 0
    assert set(report["lengths"]) >= {"p50", "p95", "p99", "longest", "max_length", "truncated"}
    assert set(report["seeds"]) == {"collect", "grpo", "evaluate"}
    assert report["versions"]["trl"]
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    text = (toy_run.folder / "report.md").read_text()
    assert all(
        (toy_run.folder / name).stat().st_size > 1000
        for name in ("grpo-curves.png", "sft-curves.png", "lengths-histogram.png")
    )
    assert "## What was learned" in text
    assert "[report.html](report.html)" in text
    assert "last loss " in toy_run.out
    assert "last reward " in toy_run.out
    assert [each["guard"] for each in report["guards"]] == ["longer-words"]
    titles = {stage["title"] for stage in report["stages"]}
    assert {f"Regression evaluation longer-words: {name}" for name in ("sft", "grpo")} <= titles
    assert report["contamination"]["clean"]
    assert report["contamination"]["learned_from"] == {"sft": report["collect"]["kept"], "grpo": 8}
    assert not report["is_champion"]
    assert {rule["rule"]: rule["holds"] for rule in report["gate"]["rules"]}["accuracy better"] is False
    assert len(report["failures"]) == 10
    assert {row["trait"] for row in report["slices"]} == {"word_len"}
    assert set(report["side_by_side"][0]["models"]) == {"base", "sft", "grpo"}
    assert report["teacher"]["compared"]["same text, right"] == report["collect"]["kept"]
    made = {row["stage"] for row in report["lineage"]}
    assert made >= {
        "questions",
        "collect",
        "filter_rollouts",
        "student",
        "sft",
        "grpo",
        "evaluate",
        "verdict",
        "release",
    }


def test_every_episode_records_what_was_sent_and_what_it_cost(toy_run: Ran, toy_home: Path):
    rollouts = next((toy_home / "artifacts/datasets/local/toy-rollouts/snapshots").glob("*/rollouts.jsonl"))
    episodes = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert [episode["seed"] for episode in episodes] == list(range(60))
    for episode in episodes:
        answered = ["assistant", "tool"] if episode["failed_at"] == "" else []
        assert [message["role"] for message in episode["messages"]] == ["system", "user", *answered]
        assert episode["environment"] == "reasoning_gym 2"
        assert json.loads(episode["tools"])[0]["function"]["name"] == "answer"
        faults = [each for each in episode["asked_again"].split("; ") if each]
        assert episode["attempts"] == len(faults) + (episode["failed_at"] == "")
        assert episode["prompt_tokens"] > 0
        assert (episode["reward"] is None) == (episode["failed_at"] == "teacher")
    assert {episode["failed_at"] for episode in episodes} == {"", "teacher"}  # the script errs in form, too


def test_no_held_out_question_was_learned_from(toy_run: Ran, toy_home: Path):
    store = toy_home / "artifacts/datasets/local"
    grpos = Window(**toy_run.report["seeds"]["grpo"]).seeds()
    episodes = [json.loads(line) for line in read(store / "toy-evaluation", "episodes.jsonl")]
    # the probe's are GRPO's
    evaluation_questions = {episode["question"] for episode in episodes if episode["seed"] not in grpos}
    kept = {json.loads(line)["messages"][1]["content"] for line in read(store / "toy-kept-rollouts", "kept.jsonl")}
    assert len(evaluation_questions) == 40 + 20  # the regression evaluation's are among them
    assert not kept & evaluation_questions


def test_a_regression_evaluation_compares_grpo_with_sft_where_the_student_was_built_here(toy_run: Ran):
    rows = toy_run.report["lineage"]
    made = {row["stage"]: row["revision"] for row in rows if row["stage"] in ("questions", "sft", "grpo")}
    evaluated = [row["inputs"] for row in rows if row["stage"] == "evaluate"][-2:]
    assert made["questions"] not in {each["questions"] for each in evaluated}
    assert [each["checkpoint"] for each in evaluated] == [made["sft"], made["grpo"]]


def test_datasets_loads_what_was_published(toy_run: Ran, toy_home: Path):
    from datasets import load_dataset

    snapshots = (toy_home / "artifacts/datasets/local/toy-questions/snapshots").iterdir()
    # not those of the regression evaluation or of the probe
    snapshot = max(snapshots, key=lambda each: lines(each / "questions.jsonl"))
    assert load_dataset(str(snapshot), "questions", split="train", cache_dir=str(toy_home / "hf")).num_rows == 180


def test_trackios_metrics_lie_in_the_store(toy_run: Ran, toy_home: Path):
    assert list((toy_home / "artifacts/trackio").glob("toy*"))
