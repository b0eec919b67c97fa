"""A whole run by a call: what `apprentice run` does, with the run as an object.

In: a recipe. Out: a `Run`. Prefect's server is the one in PREFECT_API_URL, or a temporary one of this process.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from apprentice.flows.library.results import Run
from apprentice.flows.recipe.loading import RecipeLike, load_recipe
from apprentice.flows.retrain import retrain as retrain_flow
from apprentice.flows.runtime.prefect_server import start_prefect_server
from apprentice.flows.runtime.servers import check_runs, open_store
from apprentice.tasks.reporting import announce


def retrain(recipe: RecipeLike, runs: str | Path = "runs") -> Run:
    """Train a student as a recipe describes, and measure what it learned.

    Args:
        recipe: A `Recipe`, or what `load_recipe` takes: a file, a name such as "laptop", a dictionary.
        runs: The folder in which the run's folder with its report is created.

    Returns:
        The finished run. Stages that exist in the recipe's store are not run again.

    Raises:
        Stop: Something needs a person; its text has the cause and what to do. What is finished is kept: the same call
            goes on from there.
    """
    chosen = load_recipe(recipe)
    check_runs(Path(runs))
    start_prefect_server()
    results: dict[Any, str] = {PREFECT_LOCAL_STORAGE_PATH: str(chosen.store.path.absolute() / ".prefect")}
    named = "PREFECT_LOCAL_STORAGE_PATH" in os.environ
    with nullcontext() if named else temporary_settings(updates=results):
        folder = retrain_flow(chosen, Path(runs))
    announce.show_cached()
    return Run(folder, open_store(chosen, hub_needed=False))
