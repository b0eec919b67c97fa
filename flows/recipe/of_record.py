"""The recipe that an artifact's record has.

In: an artifact. Out: a recipe for the environments that are installed.
"""

from typing import Any

from apprentice.flows.recipe.loading import explained
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.lineage.node import Node
from apprentice.tasks.reporting.errors import Stop


def recorded_recipe(node: Node) -> Recipe:
    """Return the recipe that an artifact's record has, for the installed environments. Raises Stop."""
    if node.record is None or not (recorded := node.record.provenance.recipe):
        raise Stop(f"{node.ref} has no record of its recipe: it is gone, or of older code.", "Run its recipe again.")
    remedy = f"Use the code that made it: {node.record.provenance.code}."
    with explained(f"The recipe of {node.ref} is not valid for this code", remedy):
        return Recipe.model_validate(_for_what_is_installed(recorded))


def _for_what_is_installed(recorded: Any) -> Any:
    """The recipe without the version and the code of its environments."""
    if isinstance(recorded, list):
        return [_for_what_is_installed(each) for each in recorded]
    if not isinstance(recorded, dict):
        return recorded
    rest = {name: _for_what_is_installed(each) for name, each in recorded.items()}
    if isinstance(environment := recorded.get("environment"), dict):
        rest["environment"] = {name: each for name, each in environment.items() if name not in ("version", "code")}
    return rest
