"""The whole flow on a recipe cut to seconds: real servers, real client, real trainers, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.settings.stages import Window
from tests.browser import Look, browser

assert browser  # a fixture

ROOT = Path(__file__).parent.parent.parent
TOY = ROOT / "deployments" / "recipes" / "toy.yaml"
BIN = Path(sys.executable).parent


class Ran:
    """One finished `apprentice run`."""

    def __init__(self, code: int, out: str):
        self.code = code
        self.out = out
        self.folder = Path(out.strip().splitlines()[-1])

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(stage["name"], stage["state"]) for stage in self.report["stages"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PREFECT_HOME": str(home / "prefect"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def command(*overrides: str) -> list[str]:
    return [
        str(BIN / "apprentice"),
        "run",
        str(TOY),
        *(part for each in overrides for part in ("--set", each)),
    ]


def apprentice(home: Path, *overrides: str) -> Ran:
    done = run_command(command(*overrides), home)
    return Ran(done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr))


def run_command(command: list[str], home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def first(home: Path) -> Ran:
    ran = apprentice(home)
    assert ran.code == 0, ran.out
    return ran


def test_a_run_ends_with_a_report_for_people_and_one_for_machines(first: Ran):
    report = first.report
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
    assert [(rung["n"], rung["accuracy"] <= 1.0) for rung in report["probe"]["rungs"]] == [(16, True)]
    assert report["probe"]["says"].startswith("**The task is ")
    assert set(report["grpo"]) >= {"reward_initial", "reward_final", "delta", "diagnosis"}
    assert report["collect"]["episodes"] == 60 == report["collect"]["kept"] + sum(report["collect"]["causes"].values())
    assert report["collect"]["causes"]["wrong answer"] > 0
    assert set(report["lengths"]) >= {"p50", "p95", "p99", "longest", "max_length", "truncated"}
    assert set(report["seeds"]) == {"collect", "grpo", "evaluate"}
    assert report["versions"]["trl"]
    assert {stage["state"] for stage in report["stages"]} == {"ran"}
    text = (first.folder / "report.md").read_text()
    assert all(
        (first.folder / name).stat().st_size > 1000
        for name in ("grpo-curves.png", "sft-curves.png", "lengths-histogram.png")
    )
    assert "## What was learned" in text
    assert "**Seed " in text
    assert [each["guard"] for each in report["guards"]] == ["longer-words"]
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


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_is_one_page_that_a_browser_shows_whole(first: Ran, browser: Any, width: int):
    look = Look(browser, first.folder / "report.html", width)
    assert (look.overflow, look.cut, look.asked, look.errors) == (0, [], [], [])
    assert (look.images, look.broken) == (3, 0)


def test_every_episode_records_what_was_sent_and_what_it_cost(first: Ran, home: Path):
    rollouts = next((home / "artifacts/datasets/local/toy-rollouts/snapshots").glob("*/rollouts.jsonl"))
    episodes = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert [episode["seed"] for episode in episodes] == list(range(60))
    for episode in episodes:
        assert [message["role"] for message in episode["messages"]] == ["system", "user", "assistant", "tool"]
        assert episode["environment"] == "reasoning_gym 2"
        assert json.loads(episode["tools"])[0]["function"]["name"] == "answer"
        assert episode["attempts"] == 1
        assert episode["prompt_tokens"] > 0
        assert episode["failed_at"] == ""


def test_no_held_out_question_was_learned_from(first: Ran, home: Path):
    store = home / "artifacts/datasets/local"
    grpos = Window(**first.report["seeds"]["grpo"]).seeds()
    episodes = [json.loads(line) for line in read(store / "toy-evaluation", "episodes.jsonl")]
    examined = {episode["question"] for episode in episodes if episode["seed"] not in grpos}  # the probe's are GRPO's
    kept = {json.loads(line)["messages"][1]["content"] for line in read(store / "toy-kept-rollouts", "kept.jsonl")}
    assert len(examined) == 40 + 20  # the guard rail's are among them
    assert not kept & examined


def test_datasets_loads_what_was_published(first: Ran, home: Path):
    from datasets import load_dataset

    snapshots = (home / "artifacts/datasets/local/toy-questions/snapshots").iterdir()
    snapshot = max(snapshots, key=lambda each: lines(each / "questions.jsonl"))  # not the guard rail's or the probe's
    assert load_dataset(str(snapshot), "questions", split="train", cache_dir=str(home / "hf")).num_rows == 180


def test_trackios_metrics_lie_in_the_store(first: Ran, home: Path):
    assert list((home / "artifacts/trackio").glob("toy*"))


def test_a_second_run_runs_no_stage_again_and_starts_no_server(first: Ran, home: Path):
    second = apprentice(home)
    assert {state for _, state in second.states} == {"cached"}
    assert second.report["models"] == first.report["models"]


def test_a_changed_grpo_setting_reruns_grpo_and_what_follows_and_nothing_before(first: Ran, home: Path):
    changed = apprentice(home, "grpo.learning_rate=2.0e-4")
    ran = [name for name, state in changed.states if state == "ran"]
    assert ran == ["grpo", "evaluate", "evaluate", "verdict", "gate", "release"]
    probe, held_out, guards = ["cached"], ["cached", "cached", "ran"], ["cached", "ran"]
    assert [state for name, state in changed.states if name == "evaluate"] == probe + held_out + guards


LADDER = [
    {"dataset": "spell_backward", "config": {"min_word_len": shortest, "max_word_len": longest}}
    for shortest, longest in ((3, 4), (3, 5), (6, 7))
]


@pytest.fixture(scope="module")
def climbed(first: Ran, home: Path) -> Ran:
    ran = apprentice(home, f"grpo.auto_difficulty={json.dumps(LADDER)}")
    assert ran.code == 0, ran.out
    return ran


def test_with_a_ladder_grpo_trains_on_the_rung_nearest_to_half_and_is_judged_as_before(climbed: Ran, first: Ran):
    probe = climbed.report["probe"]
    rates = [rung["accuracy"] for rung in probe["rungs"]]
    assert [rung["settings"] for rung in probe["rungs"]] == LADDER
    assert abs(rates[probe["chosen"]] - 0.5) == min(abs(rate - 0.5) for rate in rates)
    assert probe["chosen"] == 0, "nothing is right anywhere: the easiest"
    assert [stage["title"] for stage in climbed.report["stages"] if "rung" in stage["title"]] == [
        *(f"Questions of rung {place}" for place in (1, 2, 3)),
        *(f"Probe of sft on rung {place} in reasoning_gym spell_backward" for place in (1, 2, 3)),
    ]
    for text in (climbed.out, (climbed.folder / "report.md").read_text().replace("`", "")):
        assert "GRPO trains on rung 1 of 3 (min_word_len 3, max_word_len 4)" in " ".join(text.split())
    assert climbed.report["models"]["sft"] == first.report["models"]["sft"]
    assert climbed.report["gate"]["questions"] == 40
    assert climbed.report["contamination"]["clean"]


def test_a_rung_asks_nothing_that_the_evaluation_or_the_guard_rail_asks(climbed: Ran, home: Path):
    store = home / "artifacts/datasets/local"
    grpos = Window(**climbed.report["seeds"]["grpo"]).seeds()
    episodes = [json.loads(line) for line in read(store / "toy-evaluation", "episodes.jsonl")]
    examined = {episode["question"] for episode in episodes if episode["seed"] not in grpos}
    made = [row for row in climbed.report["lineage"] if row["stage"] == "rung_questions"]
    assert len(made) == 3
    for row in made:
        rows = map(json.loads, (store / "toy-questions/snapshots" / row["revision"] / "questions.jsonl").open())
        assert all(asked["used"] == (asked["question"] not in examined) for asked in rows)
        assert set(row["inputs"]) == {"kept_out.held_out", "kept_out.longer-words"}


def test_a_second_run_with_a_ladder_runs_no_stage_again(climbed: Ran, home: Path):
    second = apprentice(home, f"grpo.auto_difficulty={json.dumps(LADDER)}")
    assert {state for _, state in second.states} == {"cached"}
    assert second.report["probe"] == climbed.report["probe"]


def test_a_filter_that_keeps_nothing_stops_with_what_to_do(first: Ran, home: Path):
    ran = apprentice(home, "teacher.scripted_error_rate=0.9999999")
    assert ran.code == 1
    assert "kept none of the 60 episodes (60 × wrong answer)" in ran.out
    assert "stronger teacher" in ran.out
    assert "Traceback" not in ran.out


def test_a_mistake_in_the_recipe_ends_without_a_traceback(home: Path):
    ran = apprentice(home, "grpo.max_step=3")
    assert ran.code == 1
    assert "did you mean max_steps?" in ran.out
    assert "Traceback" not in ran.out


LONG = {
    "Teacher's rollouts": ["seed=1", "windows.collect.size=1500"],
    "SFT": ["sft.epochs=500"],
    "GRPO": ["grpo.max_steps=500"],
    "Evaluation": ["evaluate.batch_size=1", "evaluate.max_new_tokens=17"],
}
SHORT = {
    "Teacher's rollouts": ["seed=1", "windows.collect.size=1500", "sft.max_rows=32"],
    "GRPO": ["grpo.max_steps=3"],
}
"""How the run goes on where that is shown, too: once in the middle of a stage's work, once from a stage's start."""


@pytest.mark.parametrize("stage", list(LONG))
def test_ctrl_c_stops_the_servers_and_the_next_run_goes_on(first: Ran, home: Path, stage: str):
    """At each stage that takes time, made large enough to be interrupted; once by SIGTERM, which cleans up alike."""
    process = subprocess.Popen(
        command(*LONG[stage]),
        cwd=home,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    assert process.stdout is not None
    assert any(line.startswith(f"▶ {stage}") for line in process.stdout)
    if stage == "Teacher's rollouts":
        wait_for(
            lambda: any(
                lines(path) > 20 for path in (home / "artifacts/.scratch").glob("collect_shard-*/episodes.jsonl")
            )
        )
    if stage != "SFT":
        wait_for(lambda: any("envs.serving.serve reasoning_gym" in line for line in children_of(process.pid).values()))
    children = children_of(process.pid)
    process.send_signal(signal.SIGTERM if stage == "Evaluation" else signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "resumes from the last finished stage" in out
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    if stage == "Teacher's rollouts":
        bought = sum(lines(path) for path in (home / "artifacts/.scratch").glob("collect_shard-*/episodes.jsonl"))
        assert 20 < bought < 1500
    if stage not in SHORT:
        return
    again = apprentice(home, *SHORT[stage])
    assert again.code == 0, again.out
    before = [name for name, state in again.states if state == "cached"]
    assert {"Teacher's rollouts": "questions", "GRPO": "sft"}[stage] in before


# --- helpers ----------------------------------------------------------------------------------------------------------


def hears_ctrl_c() -> None:
    """A shell that puts the tests into the background has them, and whatever they start, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read(repository: Path, name: str) -> list[str]:
    return [line for path in repository.glob(f"snapshots/*/{name}") for line in path.read_text().splitlines()]


def questions(repository: Path, name: str) -> set[str]:
    return {json.loads(line)["question"] for line in read(repository, name)}


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def children_of(parent: int) -> dict[int, str]:
    """Every process below `parent`: its id and command line."""
    import psutil

    return {child.pid: " ".join(child.cmdline()) for child in psutil.Process(parent).children(recursive=True)}


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.05)
