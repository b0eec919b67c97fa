"""Which folder and which project of Trackio the curves of a run's trainings go to.

In: the store's folder, a run's name. Out: the environment variable that Trackio reads, a project's name.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
FOLDER = "trackio"
"""Beside the artifacts."""


def keep_curves_in(store: Path) -> None:
    """Names Trackio's folder: it reads that when it is imported, which is when TRL's GRPO is."""
    os.environ["TRACKIO_DIR"] = str(store / FOLDER)


def project_in_trackio(project: str) -> str:
    """What Trackio calls a project, in its files and its addresses: without dots, for one.

    As its `canonical_project_name`, without Trackio's import, which takes seconds and reads the folder's name.
    """
    return "".join(sign for sign in project if sign.isalnum() or sign in "-_") or "default"
