"""`apprentice champion show`, `history` and `rollback`: the current champion and those before it."""

from typing import Annotated

import typer

from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.cli.options import RECIPE, SET, looked_at, prepared

champion_app = typer.Typer(no_args_is_help=True, help="Show and roll back the gate's promotions.")


@champion_app.command()
@exit_with_message()
def show(recipe: RECIPE, set_: SET = None) -> None:
    """Show which model is the champion, and the gate's decision."""
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.judgement.champions import Champions

    store = open_store(looked_at(recipe, set_))
    current = Champions(store).current()
    if current is None:
        print("There is no champion yet: no model has passed the gate.")
        return
    from apprentice.tasks.advice.ending import as_markdown, read_decision
    from apprentice.tasks.reporting.announce import say

    folder = store.fetch(current)
    say(as_markdown(read_decision(folder)))
    print(f"{current.repository}@{current.revision}")
    print(folder)


@champion_app.command()
@exit_with_message()
def history(recipe: RECIPE, set_: SET = None) -> None:
    """List every change of champion and every round, the oldest first."""
    chosen = prepared(recipe, set_)
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.judgement.champions import Champions

    store = open_store(chosen)
    champion = Champions(store)
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
    from apprentice.flows.long_run import LongRun, history_rows
    from apprentice.tasks.analysis.past_rounds import past_rounds

    table("rounds", f"Rounds of {store.project}", history_rows(store, LongRun.of(chosen), past_rounds(store)))


@champion_app.command()
@exit_with_message()
def rollback(
    recipe: RECIPE,
    to: Annotated[
        int | None, typer.Option(help="Number of the change to return to. Default: the previous one.")
    ] = None,
    set_: SET = None,
) -> None:
    """Make an earlier champion the champion again. The replaced model is not promoted again automatically."""
    from apprentice.flows.runtime.servers import open_store
    from apprentice.tasks.judgement.champions import Champions

    release = Champions(open_store(prepared(recipe, set_))).roll_back(to)
    print(f"The champion is {release.repository}@{release.revision} again.")
