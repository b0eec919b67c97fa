"""By which code an artifact was made, and what is wrong with a record, in a line."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from apprentice.tasks.artifacts import provenance
from apprentice.tasks.engine import stage


@pytest.mark.parametrize(
    ("installed", "in_git", "answers", "source", "version"),
    [
        ("1.2", True, {"rev-parse": "abc", "status": ""}, None, "apprentice 1.2, commit abc"),
        ("1.2", True, {"rev-parse": "abc", "status": " M a"}, None, "apprentice 1.2, commit abc, with changes"),
        (None, True, {"rev-parse": "abc", "status": ""}, None, "apprentice, commit abc"),
        ("1.2", True, {"rev-parse": None, "status": None}, None, "apprentice 1.2"),
        ("1.2", False, {}, {"vcs_info": {"commit_id": "def"}}, "apprentice 1.2, commit def"),
        ("1.2", False, {}, {"url": "file:///here"}, "apprentice 1.2"),
        (None, False, {}, None, "apprentice"),
    ],
)
def test_the_code_is_named_by_its_version_its_commit_and_whether_it_was_changed(
    installed: str | None, in_git: bool, answers: Any, source: Any, version: str, tmp_path: Path, monkeypatch: Any
):
    def distribution(name: str) -> Any:
        if installed is None or name != "openenv-apprentice":
            raise stage.PackageNotFoundError
        text = {"direct_url.json": json.dumps(source) if source else None}
        return SimpleNamespace(version=installed, read_text=text.get)

    (tmp_path / "tasks" / "engine").mkdir(parents=True)
    if in_git:
        (tmp_path / ".git").touch()
    monkeypatch.setattr(stage, "__file__", str(tmp_path / "tasks" / "engine" / "stage.py"))
    monkeypatch.setattr(stage, "distribution", distribution)
    monkeypatch.setattr(stage, "_git", lambda folder, command, *_: folder == tmp_path and answers[command])
    assert stage.code_version.__wrapped__() == version


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (SimpleNamespace(returncode=0, stdout=" abc\n"), "abc"),
        (SimpleNamespace(returncode=128, stdout="abc"), None),
        (FileNotFoundError("git"), None),
        (subprocess.TimeoutExpired("git", 30), None),
    ],
)
def test_git_says_something_or_there_is_none(ended: Any, said: str | None, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    def run(command: list[Any], **how: Any) -> Any:
        calls.append((command, how))
        if isinstance(ended, Exception):
            raise ended
        return ended

    monkeypatch.setattr(stage.subprocess, "run", run)
    assert stage._git(Path("there"), "rev-parse", "HEAD") == said
    ((command, how),) = calls
    assert command == ["git", "-C", Path("there"), "rev-parse", "HEAD"]
    assert (how["capture_output"], how["text"]) == (True, True)
    assert how["timeout"]


class Counts(BaseModel):
    rows: list[int] = []


def mistake(given: Any) -> ValidationError:
    with pytest.raises(ValidationError) as error:
        Counts.model_validate(given)
    return error.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (mistake({"rows": [1, "x"]}), "rows.1: Input should be a valid integer, unable to parse string as an integer"),
        (mistake(5), "Input should be a valid dictionary or instance of Counts"),
        (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
        (ValueError("first\nsecond"), "first"),
        (ValueError("x" * 300), "x" * 200),
    ],
)
def test_what_is_wrong_with_a_record_is_one_short_line_without_what_it_holds(error: Exception, words: str):
    assert provenance._first(error) == words
