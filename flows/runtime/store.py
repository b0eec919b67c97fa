"""Where a recipe's artifacts are: a local folder, or the Hub with that folder in front.

In: a recipe. Out: its store.
"""

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore


def open_store(recipe: Recipe, holds_device: bool = False, hub_needed: bool = True) -> LocalStore:
    """The recipe's store; where a device waits with this process it is patient with the Hub for a part of the grace.

    Args:
        hub_needed: Left false by a run that no other machine waits for: where the Hub is out of reach, it goes on with
            the folder alone.
    """
    spec = recipe.store
    if spec.hub is None:
        return LocalStore(spec.path, recipe.name, license=spec.license)
    patience = recipe.server.grace / 4 if holds_device else spec.hub.patience
    hub = spec.hub
    return HubStore(spec.path, recipe.name, hub.namespace, hub.private, patience, hub_needed, license=spec.license)
