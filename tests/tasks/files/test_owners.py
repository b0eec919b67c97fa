"""What is published has the modes of the umask; a store for two users works by their group, or says whose a file is."""

import os
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.episodes.journal import journal
from apprentice.tasks.files.owners import denied, modes_by_umask
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.training.complete_checkpoints import LIST, write_list
from tests.tasks.artifacts.test_local import publish

GROUP, ONE, OTHER = 54321, 12345, 12346
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes two users")


@pytest.fixture
def umask() -> Iterator[Callable[[int], Any]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("mask", "was", "becomes"),
    [
        (0o022, 0o600, 0o644),
        (0o002, 0o600, 0o664),
        (0o077, 0o644, 0o600),
        (0o027, 0o600, 0o640),
        (0o002, 0o444, 0o664),
        (0o022, 0o666, 0o644),
        (0o022, 0o700, 0o755),
        (0o002, 0o755, 0o775),
        (0o077, 0o755, 0o700),
    ],
)
def test_a_published_file_has_the_mode_of_the_umask_and_stays_a_program(
    mask: int, was: int, becomes: int, umask: Callable[[int], Any], tmp_path: Path
):
    umask(mask)
    store = LocalStore(tmp_path / "store", project="toy")
    with store.staging() as folder:
        for name in ("model.safetensors", "deep/er/file"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
            (folder / name).chmod(was)
        (folder / "deep").chmod(0o700)
        made = store.publish(Questions, "k", folder, dict(collect=1, grpo=1, evaluate=1, dropped_from_grpo=0), {})
    there = store.fetch(made)
    assert {mode(path) for path in there.rglob("*") if path.is_file() and path.name != "artifact.json"} == {becomes}
    assert mode(there / "artifact.json") == 0o666 & ~mask
    assert {mode(path) for path in [there, *there.rglob("*")] if path.is_dir()} == {0o777 & ~mask}
    assert not [path for path in there.rglob("*") if path.name.startswith(".")], "what was tried is not published"


def test_folders_keep_the_group_of_the_folder_they_are_in(umask: Callable[[int], Any], tmp_path: Path):
    umask(0o002)
    tmp_path.chmod(0o2775)
    (tmp_path / "a").mkdir(mode=0o700)
    modes_by_umask(tmp_path)
    assert mode(tmp_path / "a") == 0o2775


def test_links_are_left_alone(umask: Callable[[int], Any], tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "elsewhere").touch(mode=0o600)
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "own/link").symlink_to(tmp_path / "elsewhere")
    modes_by_umask(tmp_path / "own")
    assert mode(tmp_path / "elsewhere") == 0o600


def test_a_checkpoint_that_another_user_may_resume_can_be_read(umask: Callable[[int], Any], tmp_path: Path):
    umask(0o002)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").touch(mode=0o600)
    (checkpoint / "model.safetensors").chmod(0o600)
    write_list(checkpoint)
    assert {mode(checkpoint / name) for name in ("model.safetensors", LIST)} == {0o664}


def as_user(number: int, mask: int, do: Callable[[], Any]) -> str:
    """What `do` returns as another user, who is in the group; or how it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([GROUP])
            os.setgid(number)
            os.setuid(number)
            os.umask(mask)
            said = str(do())
        except Stop as stop:
            said = f"Stop: {stop}"
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the group, as `chgrp` and `chmod g+s` leave it."""
    for folder in (tmp_path, *tmp_path.parents):  # those of pytest are the user's alone
        if not mode(folder) & 0o001:
            folder.chmod(mode(folder) | 0o011)
    folder = tmp_path / "store"
    folder.mkdir()
    os.chown(folder, ONE, GROUP)
    folder.chmod(0o2775)
    return folder


def work(store: Path, key: str, text: str = "{}\n") -> str:
    """What a stage does in a store: a lock, a journal in its scratch folder, an artifact, a tag that moves."""
    opened = LocalStore(store, project="toy")
    scratch = store / ".scratch" / "collect"
    with opened.exclusive("collect", print):
        scratch.mkdir(parents=True, exist_ok=True)
        with journal(scratch, {"seed": 1}, print):
            made = publish(opened, key, text)
            opened.tag(made, "champion")
    with opened.locked(Questions):
        assert opened.find(Questions, key) == made
    assert (opened.fetch(made) / "questions.jsonl").read_text() == text
    return "worked"


@needs_root
@pytest.mark.parametrize("second", ["the same", "another"])
def test_two_users_of_a_group_share_a_store(second: str, shared: Path):
    other = ("k", "{}\n") if second == "the same" else ("k2", "other\n")
    assert as_user(ONE, 0o002, lambda: work(shared, "k")) == "worked"
    assert as_user(OTHER, 0o002, lambda: work(shared, *other)) == "worked"
    assert as_user(ONE, 0o002, lambda: work(shared, "k3", "third\n")) == "worked"
    wrong = [path for path in shared.rglob("*") if path.stat().st_gid != GROUP or not mode(path) & 0o020]
    assert wrong == []


@needs_root
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_without_the_groups_rights_the_file_and_its_owner_are_named_and_the_remedy_works(mask: int, shared: Path):
    assert as_user(ONE, mask, lambda: work(shared, "k")) == "worked"
    said = as_user(OTHER, 0o002, lambda: work(shared, "k2", "other\n"))
    assert said.startswith("Stop: ") or "PermissionError" in said, said
    said = as_user(OTHER, 0o002, lambda: denied_by(lambda: work(shared, "k2", "other\n")))
    assert f"belongs to user {ONE} and the group {GROUP}, has the mode " in said
    assert f"this is user {OTHER}" in said
    remedy = said.partition("run: ")[2].partition(", with a GROUP")[0].replace("GROUP", str(GROUP))
    assert remedy.startswith(f"chgrp -R {GROUP} {shared}"), said
    assert as_user(ONE, 0o002, lambda: os.system(remedy)) == "0"
    assert as_user(OTHER, 0o002, lambda: work(shared, "k2", "other\n")) == "worked"


def denied_by(do: Callable[[], Any]) -> str:
    try:
        do()
    except Stop as stop:
        return str(stop)
    except OSError as error:
        return str(denied(error))
    return "nothing was denied"


@needs_root
def test_what_another_users_interrupted_run_left_is_named_with_its_owner(shared: Path):
    left = shared / ".staging" / "collect"

    def leave() -> None:
        left.mkdir(parents=True)
        (left / "half").touch()

    def staged() -> None:
        with LocalStore(shared, project="toy").staging("collect"):
            pass

    as_user(ONE, 0o022, leave)
    assert f"{left} belongs to user {ONE}" in as_user(OTHER, 0o022, lambda: denied_by(staged))


@needs_root
def test_a_file_of_ones_own_is_mended_by_oneself(shared: Path):
    def write() -> str:
        (shared / "mine").touch(mode=0o400)
        return denied_by(lambda: (shared / "mine").open("w"))

    said = as_user(ONE, 0o022, write)
    assert f"chmod -R u+rwX {shared / 'mine'}" in said


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device", "/tmp/x"), PermissionError(13, "Permission denied"), PermissionError("no")],
)
def test_what_has_nothing_to_do_with_a_file_is_not_explained_by_one(error: OSError):
    assert denied(error) is None


def test_a_file_of_ones_own_in_the_way_is_not_anothers(tmp_path: Path):
    assert denied(FileExistsError(17, "File exists", str(tmp_path))) is None
