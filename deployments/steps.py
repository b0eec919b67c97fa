"""Steps of `prefect deploy`: a recipe becomes the deployment's default parameters.

In: a recipe's file or name. Out: its parameters, with the store's path for all workers, and which triggers are enabled.
"""

import os
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.announce import shared


def recipe(recipe: str) -> dict[str, Any]:
    """Return a validated recipe, the folder for its reports, and whether each trigger is enabled. Raises Stop.

    Args:
        recipe: A YAML file, as seen from where `prefect deploy` is run, or the name of a recipe of this package.
    """
    chosen = load_recipe(Path(recipe), [])
    paused = paused_triggers(f"retrain/{chosen.name}")
    return as_deployed(chosen) | {
        "on_environment": "a new environment version" not in paused,
        "on_dataset": "a new dataset revision" not in paused,
    }


def as_deployed(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a deployment's parameters.

    The store is APPRENTICE_STORE, a folder that all workers see under this path, or else the recipe's store on this
    machine.
    """
    store = Path(os.environ.get("APPRENTICE_STORE") or recipe.store.path).absolute()
    there = recipe.model_copy(update={"store": recipe.store.model_copy(update={"path": store})})
    return {"recipe": there.as_parameters(), "runs": str(store / "runs")}


def paused_triggers(deployment: str) -> set[str]:
    """Return the deployment's automations that a person disabled; Prefect creates them again on every deploy."""
    if not shared():
        return set()
    with get_client(sync_client=True) as client:
        try:
            resource = f"prefect.deployment.{client.read_deployment_by_name(deployment).id}"
        except ObjectNotFound:
            return set()
        return {each.name for each in client.read_resource_related_automations(resource) if not each.enabled}
