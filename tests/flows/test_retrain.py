"""The flow run again over what an earlier run made: what is cached, what a change runs anew, what Ctrl-C leaves."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from apprentice.tasks.settings.spec import Window
from tests.flows.commands import Ran, apprentice, children_of, command, environment, hears_ctrl_c, lines, read, wait_for

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(toy_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder of the first run."""
    return Path(shutil.copytree(toy_home, tmp_path_factory.mktemp("again") / "home", symlinks=True))


@pytest.fixture(scope="module")
def first(toy_run: Ran) -> Ran:
    return toy_run


def test_a_second_run_runs_no_stage_again_and_starts_no_server(first: Ran, home: Path):
    second = apprentice(home)
    assert {state for _, state in second.states} == {"cached"}
    assert second.report["models"] == first.report["models"]
    nothing = second.out.index(f"Nothing to do: all {len(second.states)} stages are cached.")
    assert second.out.index("Not promoted: GRPO answers ") > nothing
    assert second.out.strip().splitlines()[-1] == str(second.folder)
    assert "▶" not in second.out


def test_a_run_prints_a_line_a_stage_and_ends_with_the_outcome_and_the_pages_path(first: Ran):
    done = [line for line in first.out.splitlines() if line.startswith("✓ ")]
    (_shard,) = (line for line in done if line.startswith("✓ Rollouts of seeds "))  # a part of the teacher's rollouts
    assert len(done) - 1 == len(first.states)
    assert re.search(r"^✓ Filter by reward +\d+\.\d s  \d+ of 60 kept", first.out, re.MULTILINE)
    release = done[-1]
    after = first.out.split(release)[1].strip().splitlines()
    outcome = first.out.index("Not promoted: GRPO answers ")
    assert after[0].startswith("Warned of 3 things:")
    assert outcome < first.out.index("Change first: sft.epochs: 16 (2 now).") < first.out.index("Cost: ")
    assert after[-2].rstrip().endswith("The page is report.html in")
    assert after[-1] == str(first.folder)
    assert len(after) <= 24, "the end fits a small terminal"


def test_a_changed_grpo_setting_reruns_grpo_and_what_follows_and_nothing_before(first: Ran, home: Path):
    changed = apprentice(home, "grpo.learning_rate=2.0e-4")
    ran = [name for name, state in changed.states if state == "ran"]
    assert ran == ["grpo", "evaluate", "evaluate", "verdict", "gate", "release"]
    probe, held_out, regressions = ["cached"], ["cached", "cached", "ran"], ["cached", "ran"]
    assert [state for name, state in changed.states if name == "evaluate"] == probe + held_out + regressions


LEVELS = [
    {"dataset": "spell_backward", "config": {"min_word_len": shortest, "max_word_len": longest}}
    for shortest, longest in ((3, 4), (3, 5), (6, 7))
]


@pytest.fixture(scope="module")
def climbed(first: Ran, home: Path) -> Ran:
    ran = apprentice(home, f"grpo.auto_difficulty={json.dumps(LEVELS)}")
    assert ran.code == 0, ran.out
    return ran


def test_with_a_ladder_grpo_trains_on_the_rung_nearest_to_half_and_is_judged_as_before(climbed: Ran, first: Ran):
    probe = climbed.report["probe"]
    rates = [level["accuracy"] for level in probe["rungs"]]
    assert [level["settings"] for level in probe["rungs"]] == LEVELS
    assert abs(rates[probe["chosen"]] - 0.5) == min(abs(rate - 0.5) for rate in rates)
    assert probe["chosen"] == 0, "nothing is right anywhere: the easiest"
    assert [stage["title"] for stage in climbed.report["stages"] if "rung" in stage["title"]] == [
        *(f"Questions of rung {place}" for place in (1, 2, 3)),
        *(f"Probe of sft on rung {place} in reasoning_gym spell_backward" for place in (1, 2, 3)),
    ]
    for text in (climbed.out, probe["says"].replace("`", "")):
        assert "GRPO trains on rung 1 of 3 (min_word_len 3, max_word_len 4)" in " ".join(text.split())
    assert climbed.report["models"]["sft"] == first.report["models"]["sft"]
    assert climbed.report["gate"]["questions"] == 40
    assert climbed.report["contamination"]["clean"]


def test_a_rung_asks_nothing_that_the_evaluation_or_the_regression_evaluation_asks(climbed: Ran, home: Path):
    store = home / "artifacts/datasets/local"
    grpos = Window(**climbed.report["seeds"]["grpo"]).seeds()
    episodes = [json.loads(line) for line in read(store / "toy-evaluation", "episodes.jsonl")]
    evaluation_questions = {episode["question"] for episode in episodes if episode["seed"] not in grpos}
    made = [row for row in climbed.report["lineage"] if row["stage"] == "rung_questions"]
    assert len(made) == 3
    for row in made:
        rows = map(json.loads, (store / "toy-questions/snapshots" / row["revision"] / "questions.jsonl").open())
        assert all(level_row["used"] == (level_row["question"] not in evaluation_questions) for level_row in rows)
        assert set(row["inputs"]) == {"kept_out.held_out", "kept_out.longer-words"}


def test_a_second_run_with_a_ladder_runs_no_stage_again(climbed: Ran, home: Path):
    second = apprentice(home, f"grpo.auto_difficulty={json.dumps(LEVELS)}")
    assert {state for _, state in second.states} == {"cached"}
    assert second.report["probe"] == climbed.report["probe"]


def test_a_filter_that_keeps_nothing_stops_with_what_to_do(first: Ran, home: Path):
    """A script that adds a text beside the right call, or uses capitals, is right: in none of these twelve episodes."""
    always_wrong = ("teacher.scripted_error_rate=0.9999999", "collect.asks=1", "windows.collect={size: 12, start: 52}")
    ran = apprentice(home, *always_wrong)
    assert ran.code == 1
    assert re.search(r"kept none of the 12 episodes \(\d+ × [a-z ]+, \d+ × ", ran.out)
    assert "× failed at the teacher" in ran.out
    assert "stronger teacher" in ran.out
    assert "Traceback" not in ran.out


def test_a_mistake_in_the_recipe_ends_without_a_traceback(home: Path):
    ran = apprentice(home, "grpo.max_step=3")
    assert ran.code == 1
    assert "did you mean max_steps?" in ran.out
    assert "Traceback" not in ran.out


LONG = {
    "Teacher's rollouts": ["seed=1", "windows.collect.size=1500"],
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
