"""The Trackio folder and project of a run's training curves.

In: the store's folder, a run's name. Out: the environment variable that Trackio reads, the project's name.
"""

import os
from pathlib import Path

FOLDER = "trackio"
"""The folder within the store."""


def keep_curves_in(store: Path) -> None:
    """Sets Trackio's folder. Call this first: Trackio reads it on import, which TRL's GRPO triggers."""
    os.environ["TRACKIO_DIR"] = str(store / FOLDER)


def project_in_trackio(project: str) -> str:
    """A project's name in Trackio's files and URLs, which allow no dots, for example.

    Same as Trackio's `canonical_project_name`, without the import, which takes seconds and fixes the folder.
    """
    return "".join(sign for sign in project if sign.isalnum() or sign in "-_") or "default"
