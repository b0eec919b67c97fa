"""What `prefect deploy` does before it writes a deployment down: a recipe becomes the default of the form.

In: a recipe's file. Out: the recipe as parameters, with a store that every worker finds at one place.
"""

import os
from pathlib import Path
from typing import Any

from apprentice.flows.recipe import load_recipe


def recipe(path: str) -> dict[str, Any]:
    """A recipe beside this file, whole and checked, and the folder for its reports.

    The store is APPRENTICE_STORE where that is set: a folder that all workers see under this name; else `artifacts`
    here. Raises Stop.
    """
    store = Path(os.environ.get("APPRENTICE_STORE") or "artifacts").absolute()
    chosen = load_recipe(Path(__file__).parent / path, [f"store.path={store}"])
    return {"recipe": chosen.as_parameters(), "runs": str(store / "runs")}
