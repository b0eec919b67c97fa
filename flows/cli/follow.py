"""`apprentice run --follow N`: a recipe, then runs that follow the advice, then the best one on fresh questions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.envs.defaults import no_collection
from apprentice.flows.cli.common import prepared

if TYPE_CHECKING:
    from apprentice.flows.follow import Followed
    from apprentice.tasks.settings.spec import Window


def check_follow(follow: int, minutes: float | None, usd: float | None, on: str | None) -> None:
    """Raise Stop for options that do not go together."""
    from apprentice.tasks.reporting.errors import Stop

    if not follow and (minutes is not None or usd is not None):
        raise Stop("--minutes and --usd bound a chain of runs.", "Add --follow N.")
    if follow and on is not None:
        raise Stop("--follow runs on this machine, and --on schedules one run.", "Leave one of them out.")


def follow_and_show(
    recipe: Path, overrides: list[str] | None, runs: Path, times: int, minutes: float | None, usd: float | None
) -> None:
    """Run a recipe and follow its advice; print the last report's closing lines, and the best run's folder last."""
    chosen = prepared(recipe, overrides, runs_flow=True)
    from apprentice.flows.runtime.prefect_server import start_prefect_server
    from apprentice.flows.runtime.servers import check_runs

    check_runs(runs)
    with no_collection():
        from apprentice.flows.follow import Budget, as_sentence, best_of, follow, fresh_window
        from apprentice.flows.pages.report_page import closing_lines
        from apprentice.flows.retrain import retrain
        from apprentice.tasks.reporting.announce import say, table
    start_prefect_server()
    chain = follow(chosen, lambda each: retrain(recipe=each, runs=runs), Budget(times, minutes, usd))
    first, best = chain[0], best_of(chain)
    say(closing_lines(best.report), "green" if best.reached else "yellow")
    table("followed", "Runs that followed the advice", [each.row() for each in chain])
    if best is not first:
        say(as_sentence(first, best, _on_fresh_questions(best, first, fresh_window(chosen))))
    print(best.folder)


def _on_fresh_questions(best: "Followed", first: "Followed", window: "Window") -> dict[str, Any]:
    """The comparison of the first run's model with the best one's."""
    from apprentice.flows.compare_models import compare_models

    return compare_models(best.recipe, [first.model, best.model], best.recipe.evaluate, window, None)
