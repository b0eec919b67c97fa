"""Options that several commands have, and the recipe that they name."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apprentice.envs.defaults import no_collection
from apprentice.flows.runtime.environment_variables import quiet, ready

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe


RECIPE = Annotated[Path, typer.Argument(help="A YAML file, or the name of a recipe of the package, such as laptop.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override one field, e.g. --set grpo.max_steps=50. Repeatable.",
    ),
]

KEY = Annotated[
    str,
    typer.Argument(
        help="A key, a revision or a tag from `apprentice run` or its report, or its first 6 characters; "
        "prefix it with namespace/repository@ if it is ambiguous."
    ),
]
STORE = Annotated[Path, typer.Option(help="The folder of artifacts.")]
HUB = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help="Also search this namespace on the Hub; the folder is then its cache."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def looked_at(recipe: Path, overrides: list[str] | None) -> "Recipe":
    """Return the recipe for a command that plays nothing and runs no flow: imports neither Prefect nor what the
    environment plays with.

    Raises Stop.
    """
    quiet()
    from apprentice.envs.catalog import LOOKING
    from apprentice.flows.recipe.loading import load_for

    with no_collection():
        chosen = load_for(LOOKING, recipe, overrides or [])
    _say_whose_code(chosen.environment.path)
    return chosen


def prepared(recipe: Path, overrides: list[str] | None, runs_flow: bool = False) -> "Recipe":
    """Set the variables that libraries read, and return the recipe. Raises Stop.

    Args:
        runs_flow: Begin to start the temporary server that a flow needs: checking a recipe takes as long, since TRL is
            imported for the arguments that it names.
    """
    ready()
    if runs_flow:
        from apprentice.flows.runtime.prefect_server import begin_prefect_server

        begin_prefect_server()
    with no_collection():
        from prefect.context import refresh_global_settings_context

        from apprentice.flows.recipe.loading import load_recipe

        chosen = load_recipe(recipe, overrides or [])
    _say_whose_code(chosen.environment.path)
    # Prefect's results belong next to the artifacts that they name
    os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(chosen.store.path.absolute() / ".prefect"))
    refresh_global_settings_context()
    return chosen


def _say_whose_code(path: "Path | None") -> None:
    if path is not None:
        from apprentice.tasks.reporting.announce import say

        say(f"This runs the Python code in `{path}`, which the recipe names.")
