"""Rounds from end to end, as a schedule runs them, and runs that begin at another arrow: real commands."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.analysis.past_rounds import past_rounds
from apprentice.tasks.artifacts.local import LocalStore
from tests.flows.commands import BIN, TOY, Ran, apprentice, run_command

pytestmark = pytest.mark.long

LEARNS = ("sft.learning_rate=1.0e-2", "gate.metric=mean_score", "sft.epochs=10", "evaluate.questions=30")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("improve")


def improve(home: Path, *overrides: str) -> Ran:
    sets = [part for each in (*LEARNS, *overrides) for part in ("--set", each)]
    done = run_command([str(BIN / "apprentice"), "improve", str(TOY), *sets], home)
    return Ran(done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr))


@pytest.fixture(scope="module")
def rounds(home: Path) -> list[Ran]:
    """A first training by `run`, which is round 0, and one round after it."""
    ran = [apprentice(home, *LEARNS), improve(home, "collect.students=2", "collect.teacher_questions=25")]
    assert [each.code for each in ran] == [0, 0], ran[-1].out
    return ran


def made(ran: Ran, stage: str) -> dict[str, Any]:
    return next(row for row in ran.report["lineage"] if row["stage"] == stage)


def test_the_second_round_trains_the_first_ones_champion(rounds: list[Ran], home: Path):
    first, second = past_rounds(LocalStore(home / "artifacts", "toy"))
    assert (first.number, second.number) == (0, 1)
    assert first.release.promoted
    assert made(rounds[1], "sft")["inputs"]["student"] == first.release.revision
    assert first.release.revision in {node.named.revision for node in second.node.ancestors()}
    assert rounds[1].report["gate"]["rival"] == "champion"


def test_no_question_of_the_first_round_is_asked_in_the_second(rounds: list[Ran], home: Path):
    store = home / "artifacts/datasets/local/toy-questions/snapshots"
    first = (store / made(rounds[0], "questions")["revision"] / "questions.jsonl").read_text().splitlines()
    second = (store / made(rounds[1], "fresh_questions")["revision"] / "questions.jsonl").read_text().splitlines()
    before = {json.loads(line)["question"] for line in first}
    assert not before & {row["question"] for row in map(json.loads, second) if row["used"]}


def test_the_champions_own_tries_and_the_earlier_rows_are_told_apart(rounds: list[Ran], home: Path):
    mixed = home / "artifacts/datasets/local/toy-kept-rollouts/snapshots" / made(rounds[1], "mix_rollouts")["revision"]
    players = {json.loads(line)["player"] for line in (mixed / "kept.jsonl").read_text().splitlines()}
    assert "an earlier round" in players
    assert any(player.startswith("scripted policy") for player in players)


def test_the_teacher_is_paid_for_no_more_questions_than_the_recipe_says(rounds: list[Ran], home: Path):
    store = home / "artifacts/datasets/local/toy-rollouts/snapshots"
    seeds_by_round = [
        {json.loads(line)["seed"] for line in (store / made(ran, "collect")["revision"] / "rollouts.jsonl").open()}
        for ran in rounds
    ]
    assert [len(seeds) for seeds in seeds_by_round] == [60, 25]
    assert rounds[1].report["rounds"][1]["bought"] == "25"


def test_the_history_is_in_the_report_and_on_the_command_line(rounds: list[Ran], home: Path):
    assert [row["round"] for row in rounds[1].report["rounds"]] == ["0", "1"]
    assert (rounds[1].folder / "history.png").stat().st_size > 1000
    listed = run_command([str(BIN / "apprentice"), "champion", "history", str(TOY)], home)
    assert listed.returncode == 0, listed.stderr
    assert "Rounds of toy" in listed.stdout


@pytest.mark.parametrize("off", ["sft", "grpo"])
def test_a_run_goes_on_from_the_champion_without_one_of_the_trainings(rounds: list[Ran], home: Path, off: str):
    ran = apprentice(home, *LEARNS, f"{off}=off", "student={champion: true}", "evaluate.questions=20")
    assert ran.code == 0, ran.out
    (kept,) = {"sft", "grpo"} - {off}
    assert list(ran.report["models"]) == ["base", kept]
    began = made(ran, kept)["inputs"]["student" if kept == "sft" else "checkpoint"]
    assert began in {each.release.revision for each in past_rounds(LocalStore(home / "artifacts", "toy"))}
    assert ran.report["gate"]["rival"] == "champion"
    assert (ran.report["collect"] is None) == (off == "sft")


def test_rollouts_that_exist_are_learned_from_without_a_teacher(rounds: list[Ran], home: Path):
    store = home / "artifacts/datasets/local/toy-kept-rollouts/snapshots"
    kept = store / made(rounds[0], "filter_rollouts")["revision"]
    ran = apprentice(home, *LEARNS, f"collect.dataset={kept}", "teacher=", "grpo=off")
    assert ran.code == 0, ran.out
    assert ran.report["collect"]["kept"] == rounds[0].report["collect"]["kept"]


def test_rows_of_a_dataset_are_learned_in_round_0_and_the_next_round_says_why_it_cannot(rounds: list[Ran], home: Path):
    store = home / "artifacts/datasets/local/toy-kept-rollouts/snapshots"
    kept = store / made(rounds[0], "filter_rollouts")["revision"]
    given = ("--rounds", "2", "--set", "name=rows", "--set", f"collect.dataset={kept}", "--set", "grpo=off")
    sets = [part for each in LEARNS for part in ("--set", each)]
    done = run_command([str(BIN / "apprentice"), "improve", str(TOY), *sets, *given], home)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, said
    assert "Only round 0 can run." in said.partition("Rounds of rows")[0], "before anything is trained"
    assert "SFT of round 1 of rows has nothing new to learn from" in said.partition("Rounds of rows")[2]
    (first,) = past_rounds(LocalStore(home / "artifacts", "rows"))
    row = first.row()
    assert (row["bought"], row["tokens"], row["USD"]) == ("0", "0", "0.0000")
    assert row["kept"].endswith(" by the dataset")


def test_a_checkpoint_that_is_not_there_is_named(home: Path):
    ran = apprentice(home, "student={checkpoint: 0123456789abcdef}")
    assert ran.code == 1
    assert "0123456789abcdef is no model of toy" in ran.out


def test_of_two_commands_at_once_the_second_plays_the_round_after_the_first(tmp_path: Path):
    sets = [part for each in LEARNS for part in ("--set", each)]
    command = [str(BIN / "apprentice"), "improve", str(TOY), *sets]
    with ThreadPoolExecutor(2) as at_once:
        done = list(at_once.map(lambda _: run_command(command, tmp_path), range(2)))
    assert [each.returncode for each in done] == [0, 0], [each.stdout + each.stderr for each in done]
    said = [" ".join((each.stdout + each.stderr).split()) for each in done]
    waited = ["Another run of improve-toy is under way" in each for each in said]
    assert sorted(waited) == [False, True]
    assert [each.number for each in past_rounds(LocalStore(tmp_path / "artifacts", "toy"))] == [0, 1]
