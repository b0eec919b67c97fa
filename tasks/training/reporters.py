"""Experiment trackers that receive the training curves through transformers: Trackio, Weights & Biases, MLflow.

In: the recipe's `report_to`. Out: TRL's argument of that name, a Weights & Biases run for each training; Stop when a
package or a key is missing.
Trackio has its own recipe section, see trackio.py; the others are configured by their environment variables.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import Reporter

if TYPE_CHECKING:
    from apprentice.tasks.engine.stage import StageContext

PROJECT = {"wandb": "WANDB_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
"""The environment variables from which transformers reads the project's name."""


def check_reporters(names: Sequence[Reporter]) -> None:
    """Raises Stop when a package is not installed, or when Weights & Biases would prompt for a key."""
    for name in names:
        if find_spec(name) is None:
            raise Stop(
                f"report_to names {name}, which is not installed.",
                f"Install it (pip install 'openenv-apprentice[{name}]'), or remove it from report_to.",
            )
    if "wandb" in names and not _wandb_has_a_key():
        raise Stop(
            "report_to names wandb, and there is no key for it: the training would wait for input.",
            "Set WANDB_API_KEY, or WANDB_MODE=offline to keep the curves on this machine.",
        )


def _wandb_has_a_key() -> bool:
    if os.environ.get("WANDB_MODE") in ("offline", "disabled") or os.environ.get("WANDB_API_KEY"):
        return True
    import wandb  # type: ignore[import-not-found]

    return wandb.api.api_key is not None  # of `wandb login`


def report_to(names: Sequence[Reporter], project: str) -> list[str]:
    """TRL's argument `report_to`. Sets the other trackers' project to `project` unless it is set already."""
    for name in names:
        if name in PROJECT:
            os.environ.setdefault(PROJECT[name], project)
    return list(names) or ["none"]


@contextmanager
def run_of_its_own(context: "StageContext", trainer: Any) -> Iterator[None]:
    """Gives a training a Weights & Biases run of its own, in the group of its recipe; WANDB_RUN_GROUP names another.

    Transformers logs to the run that is open. All trainings of a process would share the first one's, whose steps then
    begin again with each training. A training that resumes continues its run.
    """
    if "wandb" not in trainer.args.report_to or not trainer.is_world_process_zero():
        yield
        return
    import wandb  # type: ignore[import-not-found]

    recipe = hashlib.sha256(json.dumps(context.run.recipe, sort_keys=True).encode()).hexdigest()
    with wandb.init(
        project=os.environ[PROJECT["wandb"]],
        name=trainer.args.run_name,
        group=os.environ.get("WANDB_RUN_GROUP") or f"{context.run.store.project} {recipe[:8]}",
        id=context.scratch.name,
        resume="allow",
        reinit="finish_previous",
    ):
        yield
