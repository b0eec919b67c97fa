"""Opens what a stage needs outside of a flow: the recipe's servers and its store.

In: a recipe, the checks before the first stage that is not cached. Out: the stages' context; no Prefect server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apprentice.flows.recipe.loading import RecipeLike, load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import pinned_for_run
from apprentice.flows.runtime.servers import RunServers, open_store
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting import announce


def pinned_recipe(given: RecipeLike) -> Recipe:
    """Return the recipe as a run of it would use it, so that both find the same artifacts. Raises Stop."""
    return pinned_for_run(load_recipe(given), [])


@contextmanager
def at_work(recipe: Recipe, preflight: Callable[[RunContext, str], None]) -> Iterator[RunContext]:
    """Yield the context of the recipe's stages; stops the servers that they started."""
    with RunServers(recipe) as servers:
        run = RunContext(open_store(recipe, hub_needed=False), servers, **recipe.for_work())
        run.preflight = preflight
        yield run
        announce.show_cached()
