"""By which code an artifact was made, and what is wrong with a record, in a line."""

import json
import subprocess
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from apprentice.tasks.artifacts import provenance
from apprentice.tasks.engine.stage import version_of


class Package(Distribution):
    """An installed package, and the source that pip wrote down."""

    def __init__(self, source: dict[str, Any] | None):
        self._texts = {"METADATA": "Version: 1.2", "direct_url.json": json.dumps(source) if source else None}

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=toy", "-c", "user.email=toy@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("package", "version"),
    [
        (Package({"vcs_info": {"commit_id": "def"}}), "apprentice 1.2, commit def"),
        (Package({"url": "file:///here"}), "apprentice 1.2"),
        (Package(None), "apprentice 1.2"),
        (None, "apprentice"),
    ],
)
def test_the_code_is_named_by_its_version_its_commit_and_whether_it_was_changed(
    package: Package | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert version_of(tmp_path, package) == version
    git(tmp_path, "init", "--quiet")
    assert version_of(tmp_path, package) == version, "no commit yet"
    (tmp_path / "code.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    commit = f"{version.partition(',')[0]}, commit {git(tmp_path, 'rev-parse', 'HEAD')}"
    assert version_of(tmp_path, package) == commit
    (tmp_path / "code.py").write_text("two")
    assert version_of(tmp_path, package) == f"{commit}, with changes"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version_of(tmp_path, package) == version, "without git"


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
