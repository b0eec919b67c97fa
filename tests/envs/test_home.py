"""A user without a home folder, as in a container, gets one that is only this user's; a home that exists is kept."""

import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.defaults import NO_HOME, give_home, has_home, own_folder


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment, a copy; temporary folders are in one of this test."""
    mine = {name: value for name, value in os.environ.items() if name not in (NO_HOME, "LOGNAME")}
    monkeypatch.setattr(os, "environ", mine)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return mine


@pytest.mark.parametrize(
    ("home", "is_known", "becomes"),
    [
        ("/home/me", True, "/home/me"),
        ("/home/me", False, "/home/me"),
        ("/", False, "/"),
        (None, True, None),
        ("", True, None),
        (None, False, "{ours}"),
        ("", False, "{ours}"),
    ],
)
def test_only_a_user_without_a_home_gets_one(
    home: str | None, is_known: bool, becomes: str | None, variables: dict[str, str], monkeypatch: Any, tmp_path: Path
):
    def nobody(number: int) -> Any:
        raise KeyError(number)

    if not is_known:
        monkeypatch.setattr(pwd, "getpwuid", nobody)
    variables |= {} if home is None else {"HOME": home}
    if home is None:
        del variables["HOME"]
    give_home()
    ours = tmp_path / f"apprentice-{os.getuid()}"
    assert variables.get("HOME") == (becomes and becomes.replace("{ours}", str(ours)))
    assert has_home() == (becomes != "{ours}")
    assert ours.exists() == (becomes == "{ours}")
    if becomes == "{ours}":
        assert Path.home() == ours
        assert variables["LOGNAME"]
        before = dict(variables)
        give_home()
        assert variables == before, "a child process has the same"


def test_the_folder_is_the_users_alone_and_the_same_for_all_commands(variables: dict[str, str], tmp_path: Path):
    folder = Path(own_folder())
    assert folder == Path(own_folder()) == tmp_path / f"apprentice-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["link", "file", "others"])
def test_a_folder_that_somebody_else_made_is_not_taken(what: str, variables: dict[str, str], tmp_path: Path):
    there, others = tmp_path / f"apprentice-{os.getuid()}", tmp_path / "others"
    others.mkdir()
    if what == "link":
        there.symlink_to(others)
    elif what == "file":
        there.touch()
    else:
        if os.getuid():
            pytest.skip("only root makes a folder of another user")
        there.mkdir()
        os.chown(there, 12345, 12345)
    folder = Path(own_folder())
    assert folder != there
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
