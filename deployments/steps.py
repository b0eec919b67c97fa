"""The steps of `prefect deploy`: a recipe becomes a deployment's default parameters.

In: a recipe's file or name. Out: its parameters, with the store's path for all workers.
"""

import os
from pathlib import Path
from typing import Any

from apprentice.deployments.schedules import check_index, index_of_this_command
from apprentice.flows.recipe.elsewhere import elsewhere, paths_needed
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.location import given_path
from apprentice.flows.recipe.recipe import Recipe


def recipe(recipe: str) -> dict[str, Any]:
    """Return a validated recipe, and the folder for its reports. Raises Stop.

    Args:
        recipe: A YAML file, as seen from where `prefect deploy` is run, or the name of a recipe of this package.
    """
    if (index := index_of_this_command()).is_file():
        check_index(index)
    chosen = load_recipe(Path(recipe), [])
    for line in paths_needed(with_common_store(chosen)):
        print(line)
    return as_deployed(chosen)


def as_deployed(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a deployment's parameters. Raises Stop for a path that no worker would find.

    The store is APPRENTICE_STORE, a folder that all workers see under this path, or else the recipe's store on this
    machine.
    """
    recipe = with_common_store(recipe)
    return {"recipe": elsewhere(recipe), "runs": str(recipe.store.path / "runs")}


def with_common_store(recipe: Recipe) -> Recipe:
    store = given_path(os.environ.get("APPRENTICE_STORE") or recipe.store.path).absolute()
    return recipe.model_copy(update={"store": recipe.store.model_copy(update={"path": store})})
