"""Files that several users share: which modes they have, and whose one is that cannot be used.

In: a folder to publish; an error of the system. Out: modes as the umask says; a Stop with the file and its owner.
"""

import grp
import os
import pwd
import stat
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apprentice.tasks.reporting.errors import Stop

X_OF_ALL = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def modes_by_umask(folder: Path) -> None:
    """Give everything below a folder the modes of what is newly made there: those of the umask, of an ACL, of a group.

    Some libraries write for the owner alone, such as safetensors since 0.8.1, and what comes from a temporary file.
    What others own stays as it is.
    """
    file_mode, folder_mode = _new_modes(folder)
    for path in folder.rglob("*"):
        now = path.lstat()
        if stat.S_ISDIR(now.st_mode):
            wanted = folder_mode
        elif stat.S_ISREG(now.st_mode):
            is_program = now.st_mode & stat.S_IXUSR
            wanted = file_mode | (file_mode >> 2 & X_OF_ALL if is_program else 0)
        else:
            continue
        if stat.S_IMODE(now.st_mode) != wanted and now.st_uid == os.geteuid():
            path.chmod(wanted)


def _new_modes(folder: Path) -> tuple[int, int]:
    """Return the modes of a file and of a folder that are newly made there: the umask can only be read by setting it,
    for all threads."""
    probe = folder / f".{uuid.uuid4().hex}"
    probe.touch()
    file_mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    probe.mkdir()
    folder_mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    return file_mode, folder_mode


def denied(error: OSError) -> Stop | None:
    """Return what to say of a file that this user may not use; None where no file was the cause."""
    if not isinstance(error, PermissionError | FileExistsError) or not isinstance(error.filename, str | Path):
        return None
    path = Path(error.filename).absolute()
    left_over = isinstance(error, FileExistsError)  # by another user's interrupted run, and not ours to remove
    blocking = path if left_over else _blocking(path)
    owner, store = blocking.lstat().st_uid, _store_of(blocking)
    if left_over and owner == os.geteuid():
        return None
    cause = f"{error.filename} cannot be used ({error.strerror}): {whose(blocking)}."
    if owner == os.geteuid():
        return Stop(cause, f"Give yourself the right: chmod -R u+rwX {store}")
    return Stop(
        cause,
        f"To share it, let user {_name(owner)} run: chgrp -R GROUP {store} && chmod -R g+rwX {store} && find {store} "
        "-type d -exec chmod g+s {} +, with a GROUP of both, and let all of them set umask 002. Or use a store of your "
        "own: --set store.path=….",
    )


def whose(path: Path) -> str:
    """Return a clause that says whose a file or a folder is, and who this user is."""
    there = path.lstat()
    return (
        f"{path} belongs to user {_name(there.st_uid)} and the group {_name(there.st_gid, grp.getgrgid)}, has the mode "
        f"{stat.S_IMODE(there.st_mode):o}, and this is user {_name(os.geteuid())}"
    )


def _store_of(path: Path) -> Path:
    """Return the store's folder that has a path, or is it; the path itself where that cannot be seen."""
    return next((each for each in (path, *path.parents) if os.path.isdir(each / ".locks")), path)


def _blocking(path: Path) -> Path:
    """Return the first folder on the way to a path that cannot be searched; else the path, or the folder it is not
    in."""
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder
    return path if os.path.lexists(path) and not os.access(path, os.R_OK | os.W_OK) else path.parent


def _name(number: int, entry_of: Callable[[int], Sequence[Any]] = pwd.getpwuid) -> str:
    """The name of a user or of a group; its number where it has none."""
    try:
        return entry_of(number)[0]
    except KeyError:
        return str(number)
