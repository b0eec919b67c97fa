"""`apprentice champion show | history | rollback RECIPE`: the current champion and its history."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apprentice.flows.cli.common import RECIPE, SET, exit_with_message, prepared

if TYPE_CHECKING:
    from apprentice.flows.recipe.recipe import Recipe
    from apprentice.tasks.artifacts.champion import Champions
    from apprentice.tasks.artifacts.local import LocalStore

champion_app = typer.Typer(no_args_is_help=True, help="Show and roll back the gate's promotions.")


@champion_app.command()
def show(recipe: RECIPE, set_: SET = None) -> None:
    """Show which model is the champion, and the gate's decision."""
    with exit_with_message():
        champion, store, _ = champions_of(recipe, set_)
        current = champion.current()
        if current is None:
            print("There is no champion yet: no model has passed the gate.")
            return
        from apprentice.tasks.analysis.ending import as_markdown, read_decision
        from apprentice.tasks.reporting.announce import say

        folder = store.fetch(current)
        say(as_markdown(read_decision(folder)))
        print(f"{current.repository}@{current.revision}")
        print(folder)


@champion_app.command()
def history(recipe: RECIPE, set_: SET = None) -> None:
    """List every change of champion and every round, the oldest first."""
    with exit_with_message():
        champion, store, chosen = champions_of(recipe, set_)
        current = champion.current()
        rows = [
            {
                "": "→" if current is not None and change.revision == current.revision else "",
                "number": str(change.number),
                "at": change.at,
                "how": change.how,
                "revision": change.revision[:12],
            }
            for change in champion.history()
        ]
        if not rows:
            print("There was no champion yet.")
            return
        from apprentice.tasks.reporting.announce import table

        table("champions", f"Champions of {store.project}", rows)
        from apprentice.flows.curve import history_rows
        from apprentice.tasks.analysis.history import past_rounds

        table("rounds", f"Rounds of {store.project}", history_rows(store, chosen, past_rounds(store)))


@champion_app.command()
def rollback(
    recipe: RECIPE,
    to: Annotated[
        int | None, typer.Option(help="Number of the change to return to. Default: the previous one.")
    ] = None,
    set_: SET = None,
) -> None:
    """Make an earlier champion the champion again. The replaced model is not promoted again automatically."""
    with exit_with_message():
        release = champions_of(recipe, set_)[0].roll_back(to)
        print(f"The champion is {release.repository}@{release.revision} again.")


def champions_of(recipe: Path, overrides: list[str] | None) -> "tuple[Champions, LocalStore, Recipe]":
    """Return the champions of a recipe's project, its store, and the recipe."""
    chosen = prepared(recipe, overrides)
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.artifacts.champion import Champions

    store = open_store(chosen)
    return Champions(store), store, chosen
