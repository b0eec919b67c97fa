"""`~` is the home folder in every path that a person writes; what cannot be replaced is refused, never a folder `~`."""

import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from apprentice.envs.defaults import NO_HOME
from apprentice.envs.paths import Absolute, FileOrName, FilePath, expanded

OWN = pwd.getpwuid(os.getuid())


@pytest.mark.parametrize(
    ("given", "home", "becomes"),
    [
        ("~/artifacts", "/home/me", "/home/me/artifacts"),
        ("~", "/home/me", "/home/me"),
        ("~/", "/home/me/", "/home/me/"),
        ("~/a/~b", "/home/me", "/home/me/a/~b"),
        ("~/a", None, f"{OWN.pw_dir}/a"),
        ("~/a", "", f"{OWN.pw_dir}/a"),
        (f"~{OWN.pw_name}/a", "/elsewhere", f"{OWN.pw_dir}/a"),
        ("~/a", "/", "/a"),
        ("artifacts", "/home/me", "artifacts"),
        ("./~/a", "/home/me", "./~/a"),
        ("a~", "/home/me", "a~"),
        ("/data/a~1/b", "/home/me", "/data/a~1/b"),
        ("a$", "/home/me", "a$"),
        ("cost$5", "/home/me", "cost$5"),
    ],
)
def test_a_path_begins_in_the_home_folder_and_else_is_as_it_is(
    given: str, home: str | None, becomes: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    assert expanded(given) == becomes


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("~no-such-user/a", r"no home folder of a user no-such-user; write the path out \(.* here: \./~no-such-user/a"),
        ("$HOME/a", r"\$HOME is not replaced here; write the path out, or begin it with ~"),
        ("/data/${USER}/a", r"\$\{USER\} is not replaced"),
    ],
)
def test_what_nobody_replaces_is_refused(given: str, why: str):
    with pytest.raises(ValueError, match=why):
        expanded(given)


def test_a_user_without_a_name_and_without_home_is_told_to_set_it(monkeypatch: pytest.MonkeyPatch):
    def nobody(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name != "HOME"})
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ValueError, match="no home folder of this user, and HOME is not set"):
        expanded("~/artifacts")
    assert os.environ["HOME"] == os.environ[NO_HOME]
    os.environ["HOME"] = "/there"
    assert expanded("~/artifacts") == "/there/artifacts"


def test_a_file_whose_name_has_a_dollar_sign_is_read(tmp_path: Path):
    (tmp_path / "$rows").touch()
    assert expanded(str(tmp_path / "$rows")) == str(tmp_path / "$rows")


@pytest.mark.parametrize(
    ("kind", "given", "absolute"),
    [
        (FilePath, "rows.jsonl", True),
        (FilePath, "not/there", True),
        (FileOrName, "rows.jsonl", True),
        (FileOrName, "owner/name", False),
        (FileOrName, "/not/there", True),
        (FilePath | None, "rows.jsonl", True),
        (list[FilePath], ["rows.jsonl"], True),
    ],
)
def test_a_path_is_absolute_for_other_processes_and_as_given_in_a_record(
    kind: Any, given: Any, absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    found, adapter = Absolute(), TypeAdapter(kind)
    value = adapter.validate_python(given)
    assert adapter.dump_python(value, mode="json") == given
    (text,) = given if isinstance(given, list) else [given]
    dumped = adapter.dump_python(value, mode="json", context=found)
    whole = os.path.join(tmp_path, text) if absolute else text
    assert dumped == ([whole] if isinstance(given, list) else whole)
    assert found == ([whole] if absolute else [])


@pytest.mark.parametrize("given", [3, None, ["a"]])
def test_what_is_no_path_is_no_path(given: Any):
    with pytest.raises(ValidationError):
        TypeAdapter(FilePath).validate_python(given)
