"""Prints the result of `apprentice status` for a terminal of 80 columns."""

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from apprentice.tasks.reporting.announce import console

Rows = list[dict[str, str]]
SHOWN = ("state", "since", "where")


def show(found: dict[str, Rows], hours: float) -> None:
    _show_runs("Runs of commands", found["local"])
    _show_runs("Runs of deployments", found["runs"])
    _show_runs(f"Failed in {hours:g} h", found["failed"])
    if found["workers"]:
        table = Table(*found["workers"][0], title="Workers", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for worker in found["workers"]:
            table.add_row(*worker.values())
        console.print(table)
    else:
        console.print("Workers: none", style="bold")


def _show_runs(title: str, rows: Rows) -> None:
    console.print(title if rows else f"{title}: none", style="bold")
    width = max((len(row["run"]) for row in rows), default=0)
    widths = [max(len(row[name]) for row in rows) if rows else 0 for name in SHOWN[:2]]
    beside = console.width - 2 - sum(widths) - 6
    is_narrow = width + 16 > beside  # then a run's name gets its own line
    for row in rows:
        name = Text(row["run"], style=f"link {row['url']}" if row["url"] else "")
        line = Table.grid(padding=(0, 2, 0, 0))
        if is_narrow:
            console.print(Padding(name, (0, 0, 0, 2)))
        else:
            line.add_column(width=width)
        for each in widths:
            line.add_column(width=each)
        line.add_column(overflow="fold")
        line.add_row(*([] if is_narrow else [name]), *(row[name] for name in SHOWN))
        console.print(Padding(line, (0, 0, 0, 4 if is_narrow else 2)))
        if row["why"]:
            console.print(Padding(Text(row["why"], style="dim"), (0, 0, 0, 4)))
