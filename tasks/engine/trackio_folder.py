"""The Trackio folder and project of a run's training curves."""

import os
from pathlib import Path

from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.reporting import announce

FOLDER = "trackio"
"""The folder within the store."""
ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID")
ELSEWHERE += ("TRACKIO_TRACE_SESSIONS_DIR",)
"""Variables by which Trackio sends curves and transcripts elsewhere, or takes some from there."""
_set: set[str] = set()
"""The folders that this process has set."""
_ignored: set[str] = set()
"""What this process has removed, and not said yet."""


def keep_curves_in(store: Path) -> None:
    """Sets Trackio's folder. Call this first: Trackio reads it on import, which TRL's GRPO triggers.

    What the shell says of other places is removed: the recipe decides, by `trackio.space_id`.
    """
    folder = str(store / FOLDER)
    _ignored.update(name for name in ELSEWHERE if os.environ.pop(name, None) is not None)
    if os.environ.get("TRACKIO_DIR", "") not in ("", folder, *_set):
        _ignored.add("TRACKIO_DIR")
    _set.add(folder)
    os.environ["TRACKIO_DIR"] = folder


def say_ignored() -> None:
    """Says once what was removed, before a training sends its curves."""
    if _ignored:
        announce.say(
            f"{' and '.join(sorted(_ignored))} of the shell {'is' if len(_ignored) == 1 else 'are'} ignored: curves go "
            "to the recipe's `trackio.space_id`, or stay in the store."
        )
        _ignored.clear()


def share_curves() -> None:
    """Gives Trackio's databases the modes of the umask: SQLite makes them for the owner, whatever a store's group."""
    if (folder := Path(os.environ.get("TRACKIO_DIR", ""))).is_dir() and folder.name == FOLDER:
        modes_by_umask(folder)


def project_in_trackio(project: str) -> str:
    """A project's name in Trackio's files and URLs, which allow no dots, for example.

    Same as Trackio's `canonical_project_name`, without the import, which takes seconds and fixes the folder.
    """
    return "".join(sign for sign in project if sign.isalnum() or sign in "-_") or "default"
