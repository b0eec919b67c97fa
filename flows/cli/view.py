"""`apprentice view`: every episode of an artifact or of a recipe's newest run, in a browser on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from apprentice.flows.cli.common import HUB, SET, exit_with_message, prepared
from apprentice.flows.runtime.prefect_settings import quiet


def view(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|RECIPE",
            help="A recipe, by file or name, for the newest run of it; or the key, revision or tag of rollouts, an "
            "evaluation, a verdict, a decision or a release.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="The folder of artifacts, where a key is given.")] = Path("artifacts"),
    hub: HUB = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    set_: SET = None,
) -> None:
    """Show episodes as a table with filters, each beside the other models' on its question; until Ctrl-C.

    The table is that of the report's page; here it is as large as the files are. Serves 127.0.0.1 only.
    """
    with exit_with_message("Nothing was changed."):
        quiet()
        from apprentice.flows.recipe.loading import find_recipe

        if what.endswith((".yaml", ".yml")) or find_recipe(Path(what)):
            chosen = prepared(Path(what), set_)
            from apprentice.flows.view import serve, shown_of_recipe

            serve(shown_of_recipe(chosen), port, browser)
        else:
            from apprentice.flows.view import serve, shown_of_key

            serve(shown_of_key(what, store, hub), port, browser)
