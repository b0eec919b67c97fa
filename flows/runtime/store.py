"""Opens the store of a recipe's artifacts: a local folder, or the Hub with that folder as its cache."""

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore


def open_store(recipe: Recipe, holds_device: bool = False, hub_needed: bool = True) -> LocalStore:
    """Return the recipe's store.

    Args:
        holds_device: Whether this process holds a GPU: it then waits for the Hub only for a quarter of `grace`.
        hub_needed: Whether other machines need the artifacts. If not, an unreachable Hub does not stop the run.
    """
    spec = recipe.store
    if spec.hub is None:
        return LocalStore(spec.path, recipe.name, license=spec.license)
    patience = recipe.server.grace / 4 if holds_device else spec.hub.patience
    hub = spec.hub
    return HubStore(spec.path, recipe.name, hub.namespace, hub.private, patience, hub_needed, license=spec.license)
