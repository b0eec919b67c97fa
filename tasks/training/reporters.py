"""Who is sent the curves of a training while they grow: Trackio, Weights & Biases, MLflow, through transformers.

In: the recipe's `report_to`. Out: TRL's argument of that name; Stop, before anything is bought, where a package lacks.
Trackio has a section of its own, see trackio_log.py; the others are set up by their own environment variables.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import Reporter

PROJECT = {"wandb": "WANDB_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
"""The environment variable that names a project, where transformers reads it."""


def check_reporters(names: Sequence[Reporter]) -> None:
    """Raises Stop where a package is not installed, or Weights & Biases would ask for a key on the terminal."""
    for name in names:
        if find_spec(name) is None:
            raise Stop(
                f"report_to names {name}, which is not installed.",
                f"Install it (pip install 'apprentice[{name}]'), or leave it out of report_to.",
            )
    if "wandb" in names and not _wandb_has_a_key():
        raise Stop(
            "report_to names wandb, and there is no key for it: a training would stop to ask for one.",
            "Set WANDB_API_KEY, or WANDB_MODE=offline to keep the curves on this machine.",
        )


def _wandb_has_a_key() -> bool:
    if os.environ.get("WANDB_MODE") in ("offline", "disabled") or os.environ.get("WANDB_API_KEY"):
        return True
    import wandb  # type: ignore[import-not-found]

    return wandb.api.api_key is not None  # of `wandb login`


def report_to(names: Sequence[Reporter], project: str) -> list[str]:
    """TRL's argument; the others' projects are called as Trackio's, where nothing else is set."""
    for name in names:
        if name in PROJECT:
            os.environ.setdefault(PROJECT[name], project)
    return list(names) or ["none"]
