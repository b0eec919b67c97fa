"""The folder of a run's report: created when the run begins, removed if it fails.

In: the folder of all runs, a recipe. Out: a folder named by recipe, seed and time. Raises Stop if it cannot be created.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.recipe_yaml import recipe_text
from apprentice.tasks.reporting.errors import Stop


def check_runs(runs: Path) -> None:
    """Raise Stop if no folder can be created there; creates nothing."""
    there = next(each for each in (runs.absolute(), *runs.absolute().parents) if each.exists())
    if not there.is_dir():
        raise _impossible(runs, f"{there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _impossible(runs, f"{there} cannot be written")


@contextmanager
def run_folder(runs: Path, recipe: Recipe) -> Iterator[Path]:
    """Yield a new folder with the run's recipe; remove it if the block raises."""
    check_runs(runs)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    folder = runs.absolute() / f"{recipe.name}-seed{recipe.seed}-{stamp}"
    try:
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(recipe_text(recipe.model_dump(mode="json")))
    except OSError as error:
        raise _impossible(runs, error.strerror or str(error)) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _impossible(runs: Path, why: str) -> Stop:
    return Stop(f"The run's folder cannot be created in {runs}: {why}.", "Choose another folder with --runs.")
