"""Promotion from end to end, as scheduled retraining does it: real runs of a student that learns a little.

Three recipes of one project, by how long SFT trains; the mean score decides, since so small a student gets little
wholly right.
"""

import json
from pathlib import Path

import pytest

from tests.flows.commands import BIN, TOY, Ran, apprentice, run_command

pytestmark = pytest.mark.long

LEARNS = ("sft.learning_rate=1.0e-2", "gate.metric=mean_score")
SETTINGS = [part for each in LEARNS for part in ("--set", each)]
SHORT, LONG = "sft.epochs=10", "sft.epochs=150"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("champions")


@pytest.fixture(scope="module")
def short(home: Path) -> Ran:
    return retrain(home, SHORT)


@pytest.fixture(scope="module")
def long(home: Path, short: Ran) -> Ran:
    return retrain(home, LONG)


def retrain(home: Path, *settings: str) -> Ran:
    ran = apprentice(home, *LEARNS, *settings)
    assert ran.code == 0, ran.out
    return ran


def champion(home: Path, command: str, *arguments: str) -> tuple[int, str]:
    done = run_command([str(BIN / "apprentice"), "champion", command, str(TOY), *arguments], home)
    return done.returncode, done.stdout + done.stderr


def tags(home: Path) -> dict[str, str]:
    refs = home / "artifacts/models/local/toy-model/refs"
    return {path.name: path.read_text() for path in refs.iterdir()}


def test_the_first_model_is_promoted_over_the_untrained_student(short: Ran, home: Path):
    report = short.report
    assert report["is_champion"]
    assert report["gate"]["rival"] == "base"
    assert report["gate"]["comparison"]["ci"][0] > 0
    revision = tags(home)["champion"]
    card = (home / "artifacts/models/local/toy-model/snapshots" / revision / "README.md").read_text()
    assert "**Promoted**, compared with the untrained student" in card
    assert "| grpo |" in card


def test_the_champion_is_a_checkpoint_that_loads_and_shares_its_weights_with_grpos(short: Ran, home: Path):
    from apprentice.tasks.models.checkpoints import load_model
    from apprentice.tasks.models.tokenizer import load_tokenizer

    released = home / "artifacts/models/local/toy-model/snapshots" / tags(home)["champion"]
    assert load_model(released).num_parameters() > 0
    assert load_tokenizer(released).eos_token
    trained = next(row for row in short.report["lineage"] if row["stage"] == "grpo")
    weights = home / "artifacts/models" / trained["repository"] / "snapshots" / trained["revision"]
    assert (released / "model.safetensors").samefile(weights / "model.safetensors")


def test_the_same_recipe_again_changes_nothing_and_runs_nothing(short: Ran, home: Path):
    before = tags(home)
    again = retrain(home, SHORT)
    assert {state for _, state in again.states} == {"cached"}
    assert again.report["is_champion"]
    assert tags(home) == before


def test_a_better_model_takes_its_place(long: Ran, short: Ran, home: Path):
    assert long.report["gate"]["rival"] == "champion"
    assert long.report["is_champion"]
    assert long.report["gate"]["comparison"]["delta"] > 0
    code, out = champion(home, "show")
    assert code == 0
    assert "compared with the champion" in out
    assert tags(home)["champion"] in out


def test_a_model_that_is_no_better_is_kept_tagged_and_told_why(long: Ran, home: Path):
    before = tags(home)["champion"]
    weak = retrain(home, LONG, "grpo.learning_rate=2.0e-6")
    assert not weak.report["is_champion"]
    refused = [rule for rule in weak.report["gate"]["rules"] if not rule["holds"]]
    assert refused[0]["rule"] == "mean score better" or refused[0]["rule"] == "interval above zero"
    now = tags(home)
    assert now["champion"] == before
    rejected = next(revision for tag, revision in now.items() if tag.startswith("rejected-"))
    card = (home / "artifacts/models/local/toy-model/snapshots" / rejected / "README.md").read_text()
    assert "**Not promoted**, compared with the champion" in card
    assert refused[0]["found"] in card


def test_a_champion_that_is_rolled_back_stays_back(long: Ran, short: Ran, home: Path):
    """Last in this file: the next retraining finds the same model again, and must not promote it again."""
    assert champion(home, "rollback")[0] == 0
    listed, _, rounds = champion(home, "history")[1].partition("Rounds of toy")
    assert [word for line in listed.splitlines() for word in line.split() if word in ("promoted", "rollback")] == [
        "promoted",
        "promoted",
        "rollback",
    ]
    assert "promoted" in rounds
    again = retrain(home, LONG)
    assert not again.report["is_champion"]
    assert "not rolled back" in [rule["rule"] for rule in again.report["gate"]["rules"] if not rule["holds"]]
    assert champion(home, "rollback")[0] == 1


def test_without_a_champion_the_commands_say_so(tmp_path: Path):
    assert "no champion yet" in champion(tmp_path, "show")[1]
    assert "There was no champion yet" in champion(tmp_path, "history")[1]
    code, out = champion(tmp_path, "rollback")
    assert code == 1
    assert "no earlier champion" in out


def test_trained_models_are_compared_by_their_keys(long: Ran, short: Ran, home: Path):
    keys = [next(row["key"] for row in ran.report["lineage"] if row["stage"] == "grpo") for ran in (short, long)]
    models = [part for key in keys for part in ("--model", key)]
    done = run_command([str(BIN / "apprentice"), "evaluate", str(TOY), *models, "--json", *SETTINGS], home)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found["models"]) == keys
    assert found["models"][keys[1]]["mean_score"] == long.report["models"]["grpo"]["mean_score"]
    assert found["models"][keys[0]]["seen_in_training"] == 0
    assert (found["comparisons"][0]["from"], found["comparisons"][0]["to"]) == (keys[0], keys[1])
