"""A training logs to the Space that its recipe names, and does not depend on it."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants
from pydantic import ValidationError

from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.trackers import TrackioSpec
from apprentice.tasks.training.tracking import reporters as trackio_log
from apprentice.tasks.training.tracking.reporters import check_space, trackio_arguments
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub

assert hub  # a fixture

SPACE = TrackioSpec(space_id="tester/curves")


@pytest.mark.long
def test_a_training_whose_space_is_out_of_reach_goes_on_and_keeps_its_curves_in_the_store(tmp_path: Path):
    away = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "write", "HF_HUB_OFFLINE": "0", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.logging_training", str(tmp_path), "tester/curves"],
        env=os.environ | away,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "4", "all steps were done"
    assert "The Space tester/curves is not reachable" in done.stdout
    with sqlite3.connect(tmp_path / "artifacts" / "trackio" / "toy.db") as metrics:
        steps = [step for (step,) in metrics.execute("SELECT step FROM metrics ORDER BY step")]
        names = {name for (name,) in metrics.execute("SELECT run_name FROM metrics")}
    assert steps == [2, 4], "the training's steps, of which every second one is logged, and no summary"
    assert names == {"sft toy seed 0 00000000"}


def test_the_space_is_told_to_the_trainer_and_no_training_leaves_a_second_one(work: RunContext):
    assert trackio_arguments(work)["trackio_space_id"] is None
    there = RunContext(work.store, work.servers, trackio=SPACE)
    arguments = trackio_arguments(there)
    assert (arguments["trackio_space_id"], arguments["trackio_static_space_id"]) == ("tester/curves", False)
    assert arguments["hub_private_repo"]


def test_a_space_that_can_be_written_to_or_made_is_nothing_to_talk_about(hub: LocalHub, capfd):
    check_space(TrackioSpec(), "toy")
    assert not hub.requests(), "nothing is asked for a local run"
    check_space(SPACE, "toy")
    HfApi().create_repo("tester/curves", repo_type="space", space_sdk="gradio")
    check_space(SPACE, "toy")
    assert "Space" not in capfd.readouterr().out


def test_what_the_hub_would_refuse_stops_the_run_before_it_begins(hub: LocalHub, monkeypatch: pytest.MonkeyPatch):
    HfApi().create_repo("tester/frozen", repo_type="space", space_sdk="static")
    with pytest.raises(Stop, match="frozen"):
        check_space(TrackioSpec(space_id="tester/frozen"), "toy")
    with pytest.raises(Stop, match="cannot write to a Space of others"):
        check_space(TrackioSpec(space_id="others/curves"), "toy")
    for token, says in (("read", "is read-only"), ("bad", "does not know the token")):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(Stop, match=says):
            check_space(SPACE, "toy")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    with pytest.raises(Stop, match="no token"):
        check_space(SPACE, "toy")


def test_a_hub_that_is_away_is_said_before_the_run_begins(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setattr(trackio_log, "PATIENCE", 0.5)
    hub.fail({"match": "whoami", "do": 503})
    check_space(SPACE, "toy")
    assert "is not reachable (HfHubHTTPError)" in " ".join(capfd.readouterr().out.split())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_space(SPACE, "toy")
    assert "is not reachable (OfflineModeIsEnabled)" in " ".join(capfd.readouterr().out.split())


def test_a_space_is_named_with_its_owner():
    with pytest.raises(ValidationError):
        TrackioSpec(space_id="curves")


@pytest.mark.parametrize("space", ["me/a--b", "me/-curves", "me/curves.", "me/curves.git", f"me/{'a' * 90}"])
def test_a_space_or_its_bucket_that_the_hub_would_not_take_is_refused_when_it_is_read(space: str):
    with pytest.raises(ValidationError, match="the Hub takes no such Space or bucket"):
        TrackioSpec(space_id=space)
    assert TrackioSpec(space_id="me/" + "a" * 89).space_id
