"""What happens before a deployment is written down: a recipe becomes the default of the form.

In: a recipe's file. Out: the recipe as parameters, with a store that every worker finds at one place, and which of its
triggers are on.
"""

import os
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.reporting.shared_server import shared


def recipe(path: str) -> dict[str, Any]:
    """A step of `prefect deploy`: a recipe beside this file, whole and checked, the folder for its reports, and for
    each trigger of the index whether it is on. Raises Stop.
    """
    chosen = load_recipe(Path(__file__).parent / path, [])
    paused = paused_triggers(f"retrain/{chosen.name}")
    return as_deployed(chosen) | {
        "on_environment": "a new environment version" not in paused,
        "on_dataset": "a new dataset revision" not in paused,
    }


def as_deployed(recipe: Recipe) -> dict[str, Any]:
    """A recipe as a deployment's parameters.

    The store is APPRENTICE_STORE where that is set: a folder that all workers see under this name; else the recipe's,
    seen from here.
    """
    store = Path(os.environ.get("APPRENTICE_STORE") or recipe.store.path).absolute()
    there = recipe.model_copy(update={"store": recipe.store.model_copy(update={"path": store})})
    return {"recipe": there.as_parameters(), "runs": str(store / "runs")}


def paused_triggers(deployment: str) -> set[str]:
    """The names of the deployment's automations that a person switched off; Prefect makes them anew when it deploys."""
    if not shared():
        return set()
    with get_client(sync_client=True) as client:
        try:
            resource = f"prefect.deployment.{client.read_deployment_by_name(deployment).id}"
        except ObjectNotFound:
            return set()
        return {each.name for each in client.read_resource_related_automations(resource) if not each.enabled}
