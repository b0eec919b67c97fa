"""`apprentice runs` and `apprentice compare`: the finished runs of a folder, as a list and side by side.

In: the runs' folders; for a comparison artifacts, too. Out: tables and a page, or one line of JSON. Both only read.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from apprentice.flows.cli.common import HUB, JSON, exit_with_message
from apprentice.flows.runtime.prefect_settings import quiet

RUNS = Annotated[Path, typer.Option(help="The folder of the runs' folders.")]
STORE_OF_RUNS = Annotated[
    Path | None, typer.Option(help="The folder of artifacts. Default: that of each run's recipe, else artifacts.")
]

WIDE = 116
"""Columns of a terminal from which recipe, seed and time stand beside a run's name."""


def runs(runs: RUNS = Path("runs"), store: STORE_OF_RUNS = None, json_: JSON = False) -> None:
    """List the finished runs of a folder, the newest first: recipe, seed, when, outcome, champion or not, page."""
    with exit_with_message():
        quiet()
        from apprentice.flows.runs import finished
        from apprentice.tasks.reporting.announce import console, table

        rows = [run.row(store) for run in finished(runs)]
        if json_:
            print(json.dumps(rows, ensure_ascii=False))
        elif rows:
            table(
                "runs",
                f"Runs in {runs}; the page of each: {runs}/RUN/report.html",
                [_shown(row, console.width) for row in rows],
            )
        else:
            print(f"There is no finished run in {runs}.")


def _shown(row: dict[str, str], width: int) -> dict[str, str]:
    """What fits a terminal of 80 columns; one of 120 has what a run's own name may leave out as well."""
    wide = {name: row[name] for name in ("recipe", "seed", "when")} if width >= WIDE else {}
    outcome = "champion" if row["champion"] == "yes" else row["outcome"]
    return {"run": row["run"], **wide, "accuracy": f"{row['model']} {row['accuracy']}", "outcome": outcome}


def compare(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|KEY…",
            help="A run's folder or its name in `apprentice runs`; last: the newest; the key, revision or tag of a "
            "verdict, a decision, a release or an evaluation; owner/name@revision for one on the Hub.",
        ),
    ],
    runs: RUNS = Path("runs"),
    store: STORE_OF_RUNS = None,
    hub: HUB = None,
    json_: JSON = False,
) -> None:
    """Lay finished runs side by side: settings that differ, accuracy on the same questions, curves, cost.

    Trains and plays nothing. For models that were not asked the same questions use `apprentice evaluate`.
    """
    with exit_with_message():
        quiet()
        from apprentice.flows.compare_runs import compare_runs, shown_in_terminal
        from apprentice.flows.comparison_side import side_named

        found = compare_runs([side_named(each, runs, store, hub) for each in run], runs)
        if json_:
            print(json.dumps(found, ensure_ascii=False))
            return
        shown_in_terminal(found)
        print(found["page"])
