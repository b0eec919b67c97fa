"""Curves stay in the store's folder, under Trackio's own name of a project."""

import os
import re
from pathlib import Path

import pytest

from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.trackio_folder import ELSEWHERE, project_in_trackio
from apprentice.tasks.training.tracking.reporters import check_reporters


@pytest.mark.parametrize("name", ["toy", "chain-sum-qwen3-0.6b", "a_b c", "..."])
def test_a_project_is_called_what_trackio_calls_it(name: str):
    from trackio.utils import canonical_project_name

    assert project_in_trackio(name) == canonical_project_name(name)


@pytest.mark.parametrize("name", [*ELSEWHERE, "TRACKIO_DIR"])
@pytest.mark.parametrize("value", ["others/curves", ""])
def test_curves_stay_where_the_recipe_says_whatever_the_shell_names(
    name: str, value: str, work: RunContext, monkeypatch: pytest.MonkeyPatch, capfd
):
    monkeypatch.setenv(name, value)
    check_reporters(["trackio"])
    capfd.readouterr()
    RunContext(work.store, work.servers)
    assert os.environ["TRACKIO_DIR"] == str(work.store.root / "trackio")
    assert not set(ELSEWHERE) & os.environ.keys()
    check_reporters(["trackio"])
    check_reporters(["trackio"])
    said = f"{name} of the shell is ignored" in " ".join(capfd.readouterr().out.split())
    assert said == (bool(value) or name != "TRACKIO_DIR")


def test_a_tuning_of_trackio_s_files_is_left_to_the_shell(work: RunContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_SQLITE_JOURNAL_MODE", "delete")
    RunContext(work.store, work.servers)
    assert os.environ["TRACKIO_SQLITE_JOURNAL_MODE"] == "delete"


def test_all_variables_of_trackio_that_name_another_place_are_known():
    """Trackio gets new ones: each that its source reads is either removed, or no place that curves go to."""
    import trackio

    source = "".join(file.read_text() for file in sorted(Path(trackio.__file__).parent.glob("*.py")))
    read = set(re.findall(r"[\"'](TRACKIO_[A-Z_]*(?:_ID|_URL|_DIR))[\"']", source))
    others = {"TRACKIO_DIR", "TRACKIO_FRONTEND_DIR", "TRACKIO_REGISTRY_BUCKET_ID", "TRACKIO_WEBHOOK_URL"}
    others |= {"TRACKIO_LOGO_DARK_URL", "TRACKIO_LOGO_LIGHT_URL", "TRACKIO_LOGO_DIR"}
    assert read - others == set(ELSEWHERE)
