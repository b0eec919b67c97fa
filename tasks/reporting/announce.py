"""Reports a run's progress on the terminal and in Prefect's interface.

In: titles, tables, pictures, progress. Out: lines and bars on the terminal or below a notebook's cell (rich); Prefect
artifacts within a flow run.
"""

import base64
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec

from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from apprentice.envs.wire.server import outage_listeners, without_secrets
from apprentice.tasks.reporting.permanent_server import shared
from apprentice.tasks.reporting.progress import Bars, note

if TYPE_CHECKING:
    from prefect.assets import Asset

P = ParamSpec("P")
FEW = 20
"""Rows of a table that a terminal shows."""
UNLIMITED = 10_000
"""Columns of a terminal that any table fits."""


def _go_quiet(self: Console) -> None:
    """Keeps running when the reader of the output, such as a worker, was killed."""
    self.quiet = True


# rich would end the process; Prefect's logging prints through rich too
Console.on_broken_pipe = _go_quiet  # type: ignore[method-assign]
console = Console(file=sys.__stdout__, highlight=False)
"""Bypasses redirection: output of libraries is hidden while a progress bar runs, this console's output is not."""


_verbose = False


def be_verbose() -> None:
    """Shows the stages' tables and samples on the terminal, too, and a line for each cached stage."""
    global _verbose
    _verbose = True


Teller = Callable[..., None]
"""Takes the name of one of this module's functions and its arguments."""

_teller: Teller | None = None


def say_through(teller: Teller) -> None:
    """Sends this process's reports through `teller`: of several training processes only the first one reports."""
    global _teller
    _teller = teller


def _said_there(function: Callable[P, None]) -> Callable[P, None]:
    @wraps(function)
    def say_it(*args: P.args, **kwargs: P.kwargs) -> None:
        if _teller is None:
            function(*args, **kwargs)
        else:
            _teller(function.__name__, *args, **kwargs)

    return say_it


@contextmanager
def relaying() -> Iterator[Teller]:
    """Yields a function that repeats another process's reports here; progress bars left open close with the block."""
    with ExitStack() as bars:
        advance: Callable[[int], None] | None = None

        def step(name: str, *args: Any) -> None:
            nonlocal advance
            if name == "progress":
                advance = bars.enter_context(progress(*args))
            elif name == "advance" and advance is not None:
                advance(*args)
            elif name == "progress ended":
                bars.close()
            else:
                globals()[name](*args)

        yield step


def in_prefect() -> bool:
    """Whether this code runs within a flow run or a task run."""
    if "prefect.context" not in sys.modules:  # its import takes most of a second, which a look at files does not need
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return TaskRunContext.get() is not None or FlowRunContext.get() is not None


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Holds back what the block prints; yields a function that lets it through when the block ends."""
    let_through = threading.Event()
    with console.capture() as captured:
        yield let_through.set
    _cached.clear()
    if let_through.is_set():
        console.out(captured.get(), end="", highlight=False)


def _log(line: str, level: int = logging.INFO) -> None:
    if in_prefect():
        from prefect.logging import get_run_logger

        get_run_logger().log(level, line)


def _create(kind: str, **content: Any) -> Any:
    """Creates an artifact of Prefect's, such as a table; returns its id, None outside of a flow run."""
    if not in_prefect():
        return None
    from prefect import artifacts

    return getattr(artifacts, f"create_{kind}_artifact")(**content)


@_said_there
def event(name: str, resource: str, payload: dict[str, Any]) -> None:
    """Emits an event to a permanent Prefect server, if one is in use, to trigger automations.

    `resource`: the subject of the event, such as champion.local/toy-model.
    """
    if shared():
        from prefect.events import emit_event

        emit_event(f"apprentice.{name}", resource={"prefect.resource.id": f"apprentice.{resource}"}, payload=payload)


def assets(made: str, made_from: Iterable[str]) -> "tuple[list[str | Asset], list[str | Asset]]":
    """The assets that a task materializes and depends on, for a permanent Prefect server's lineage view; else none.

    https://docs.prefect.io/v3/concepts/assets
    """
    if not shared():
        return [], []
    return [made], [*sorted(set(made_from))]


def materialized(asset: str, metadata: dict[str, Any]) -> None:
    from prefect.context import AssetContext

    context = AssetContext.get()
    if context is not None and any(each.key == asset for each in context.downstream_assets):
        context.add_asset_metadata(asset, metadata)


def link(key: str, url: str, text: str) -> None:
    _create("link", link=url, link_text=text, key=key, description=text)


def run_url() -> str:
    """The page of the running flow on a permanent Prefect server; empty without one, or where its URL has a secret."""
    from prefect.runtime import flow_run
    from prefect.utilities.urls import url_for

    url = (url_for("flow-run", flow_run.id) or "") if shared() and flow_run.id else ""
    with suppress(ValueError):
        return without_secrets(url, "it has none in its settings")
    return ""


_cached: list[str] = []
"""Titles of the cached stages that no line was printed for yet."""


def show_cached() -> None:
    """Prints one line for the cached stages since the last line of a stage."""
    if _cached:
        console.print(f"[dim]✓ {len(_cached)} stage{'s' * (len(_cached) > 1)} cached[/]")
        _cached.clear()


@contextmanager
def stage_running(title: str) -> Iterator[None]:
    """Shows a stage while it runs; a log, which has no bars, gets a line at its start."""
    show_cached()
    _log(title)
    note("stage began", title=title)
    if not _bars.shown:
        console.print(f"▶ {escape(title)}")
    with _bars.bar(f"[bold]▶ {escape(title)}", None, 0) if _bars.shown else nullcontext():
        yield


def stage_ended(title: str, run: "StageRun", figure: str, emit: bool = True) -> None:
    """Prints a stage's line.

    Args:
        figure: What the stage came to, in a few words.
        emit: Also write to the log and emit an event; for a dispatched stage the dispatcher does that.
    """
    if run.state == "cached" and not _verbose:
        _cached.append(title)
    else:
        show_cached()
        seconds = "cached" if run.state == "cached" else f"{run.seconds:,.1f} s"
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        line.add_column(width=10, justify="right", no_wrap=True)
        line.add_column(width=24, no_wrap=True, overflow="ellipsis")
        line.add_row(f"[green]✓[/] {escape(title)}", seconds, escape(figure))
        console.print(line)
    _log(f"{title}: {run.state}, {run.seconds:.1f} s, {run.key}")
    if emit:
        fields = {**run._asdict(), "seconds": round(run.seconds, 1)}
        fields["stage"] = fields.pop("name")
        note("stage ended", **fields)
        event("stage.ended", f"stage.{run.name}", fields)


def dispatched(title: str, deployment: str, run: str) -> None:
    show_cached()
    console.print(f"[bold]▶ {escape(title)}[/]: on {deployment}, flow run {run}")
    _log(f"{title}: on {deployment}, flow run {run}")
    note("stage dispatched", title=title, deployment=deployment, flow_run=run)


_warned: Counter[str] = Counter()


def forget_warnings() -> None:
    """A run begins: earlier warnings are not its own."""
    _warned.clear()


def warned() -> list[str]:
    """What this process has warned of in this run, each text once, with how often if that is more."""
    said = ((" ".join(text.split()), times) for text, times in _warned.items())
    return [f"{text} ({times} times)" if times > 1 else text for text, times in said]


@_said_there
def warn(text: str) -> None:
    """Prints a warning on the terminal and writes it to Prefect's log and the run's log. Thread-safe."""
    _warned[text] += 1
    console.print(f"[yellow]  {escape(text)}[/]")
    _log(text, logging.WARNING)
    note(text, level=logging.WARNING)


@_said_there
def table(key: str, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Shows rows as a table on the terminal and in Prefect. `key`: lower case and dashes."""
    _print_table(title, rows)
    _create("table", key=key, table=list(rows), description=title)


def _print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    shown = Table(*rows[0], title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.columns[0].overflow = "fold"  # a name that is cut cannot be copied
    for row in rows:
        shown.add_row(*(escape(str(value)) for value in row.values()))  # a cell may hold a text of somebody else
    needed = console.measure(shown, options=console.options.update(width=UNLIMITED)).minimum
    console.print(shown if needed <= console.width else _one_below_another(title, rows))


def _one_below_another(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each value of each row: a terminal that is too narrow for a table would cut its numbers."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.title, shown.title_justify = escape(title), "left"
    for row in rows:
        for name, value in row.items():
            if str(value):
                shown.add_row(name, escape(str(value)))
        shown.add_row()
    return shown


@_said_there
def rows(key: str, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Shows rows as a table in Prefect, and on the terminal of a verbose run if they are few."""
    if _verbose and len(rows) <= FEW:
        _print_table(title, rows)
    _create("table", key=key, table=list(rows), description=title)


def say(text: str, style: str = "none") -> None:
    """Shows Markdown on the terminal, in a colour of rich's."""
    console.print(Markdown(text, style=style))


def detail(text: str) -> None:
    """Shows Markdown on the terminal of a verbose run."""
    if _verbose:
        say(text)


@_said_there
def markdown(key: str, text: str, description: str) -> None:
    """Shows Markdown in Prefect."""
    _create("markdown", key=key, markdown=text, description=description)


@_said_there
def picture(key: str, png: Path, description: str) -> None:
    """Shows a picture in Prefect, embedded as a data URL, so that no file server is needed."""
    if not in_prefect():
        return
    data = base64.b64encode(png.read_bytes()).decode()
    _create("image", image_url=f"data:image/png;base64,{data}", key=key, description=description)


_bars = Bars(console)
SOONEST_S, LATEST_S = 2.0, 30.0
"""Seconds between two progress updates in Prefect while a bar advances: the stage waits for each update."""


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows a bar of `total` units, `done` of them already finished; yields `advance(n)`, for use from one thread."""
    if _teller is not None:
        _teller("progress", title, total, done)
        yield partial(_teller, "advance")
        _teller("progress ended")
        return
    artifact = _create("progress", progress=100.0 * done / total if total else 100.0, description=title)
    shown, began = done, monotonic()
    updated = printed = began
    with _bars.bar(f"  {escape(title)}", total, done) as bar:

        def far(now: int) -> str:
            left = (monotonic() - began) / (now - done) * (total - now)
            return f"{title}: {now:,} of {total:,}" + (f", {duration_text(left)} left" if left else "")

        def advance(units: int) -> None:
            nonlocal shown, updated, printed, artifact
            now = bar(units)
            if not _bars.shown and monotonic() - printed >= LATEST_S:  # a log has no bar
                printed = monotonic()
                console.print(f"  {escape(far(now))}")
            since = monotonic() - updated
            due = since >= LATEST_S or (since >= SOONEST_S and now - shown >= total / 10)
            if artifact is not None and (due or now == total):
                from prefect.artifacts import update_progress_artifact

                shown, updated = now, monotonic()
                try:
                    update_progress_artifact(artifact_id=artifact, progress=100.0 * now / total, description=far(now))
                except Exception as error:  # a run does not depend on Prefect's server
                    artifact = None
                    console.print(f"[yellow]  Prefect no longer accepts progress ({type(error).__name__}).[/]")

        yield advance


def duration_text(seconds: float) -> str:
    """A duration for people, such as "about 3 min"."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


outage_listeners.append(
    lambda what, server: event(f"outage.{what}", f"environment.{server.url}", {"space": server.space})
)


class StageRun(NamedTuple):
    """One entry of the run's log."""

    name: str
    state: Literal["ran", "cached"]
    seconds: float
    key: str
    title: str = ""
    pool: str = ""
    worker: str = ""
    attempts: int = 1
    """Number of attempts; more than one for a stage that was interrupted on a work pool and resumed."""
    counts: dict[str, float] = {}  # noqa: RUF012
    """Counters by name: episodes, tokens, USD, retries, reconnects, seconds waited, seconds on a device."""
