"""Prepares this process for a flow or a stage, before the libraries that read variables are imported.

In: the environment. Out: variables that are not set already.
"""

import os
import tempfile
import warnings
from pathlib import Path

from apprentice.envs.defaults import debugging
from apprentice.flows.runtime.prefect_settings import check_settings

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run prints its own progress; Prefect has the logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

LOUD = ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "TRANSFORMERS_VERBOSITY")
"""Variables that `--debug` does not set."""


def ready() -> None:
    """Prepare the process for a flow. Call it before importing Prefect, which creates its folder at import time.

    Raises Stop if Prefect's settings are not valid.
    """
    quiet()
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's in a notebook; the run shows its own bars
    if "PREFECT_HOME" not in os.environ and not _can_be_written(Path("~/.prefect")):
        os.environ["PREFECT_HOME"] = tempfile.mkdtemp(prefix="apprentice-prefect-")
        print(f"~/.prefect is not writable: Prefect stores its data in {os.environ['PREFECT_HOME']}.")
    check_settings()


def quiet() -> None:
    """Set the variables that libraries read at import time, if they are not set."""
    for name, value in QUIET.items():
        if not (debugging() and name in LOUD):
            os.environ.setdefault(name, value)


def _can_be_written(folder: Path) -> bool:
    try:
        there = folder.expanduser()
        there.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=there):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return False
