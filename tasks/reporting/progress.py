"""How far a run is: its progress bars, and its structured log.

One display on a terminal, or below a notebook's cell, has the bars of all stages that run at once. The log is one JSON
line per event, with its run, stage and episode.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from time import monotonic
from typing import Any

from pythonjsonlogger.json import JsonFormatter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

CELL_UPDATE_S = 0.2
"""Minimum seconds between two updates of a notebook's bars."""


class _Counted(MofNCompleteColumn):
    """How many of how many; nothing for a bar that only pulses."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class Bars:
    """The progress bars of a terminal or of a notebook's cell: one display for all concurrent stages."""

    def __init__(self, console: Console):
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), _Counted(), TimeRemainingColumn())
        self._display = Progress(
            *columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal
        )
        self._cell: Any = None
        self._cell_updated = 0.0
        self._using = 0
        self._lock = threading.Lock()

    @property
    def shown(self) -> bool:
        return self._console.is_terminal or self._console.is_jupyter

    @contextmanager
    def bar(self, title: str, total: int | None, done: int) -> Iterator[Callable[[int], int]]:
        """Yields a function that advances the bar and returns its position; without a total the bar only pulses."""
        with self._lock:
            self._using += 1
            if self._using == 1:
                self._start()
        line = self._display.add_task(title, total=total, completed=done)
        position = done

        def advance(units: int) -> int:
            nonlocal position
            position += units
            self._display.update(line, completed=position)
            if monotonic() - self._cell_updated >= CELL_UPDATE_S or position == total:
                self._update_cell()
            return position

        self._update_cell()
        try:
            yield advance
        finally:
            self._display.remove_task(line)
            with self._lock:
                self._using -= 1
                if not self._using:
                    self._stop()

    def _start(self) -> None:
        self._display.start()  # nothing in a notebook, where rich needs ipywidgets for what a display's handle does
        if self._console.is_jupyter:
            from IPython.display import display

            self._cell = display(self._display, display_id=True)

    def _stop(self) -> None:
        self._display.stop()
        if self._cell is not None:
            self._cell.update({"text/plain": ""}, raw=True)
            self._cell = None

    def _update_cell(self) -> None:
        if (cell := self._cell) is not None:
            self._cell_updated = monotonic()
            cell.update(self._display)


class _Quiet(logging.FileHandler):
    """Ignores a full disk and a folder that is read-only or gone; the store reports them when it writes an artifact."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # opening the file raises here, outside of what handleError is called for
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        return


_stage: ContextVar[dict[str, str]] = ContextVar("stage", default={})  # noqa: B039  # never changed in place
_logger = logging.getLogger("apprentice.log")
_logger.propagate = False
_logger.setLevel(logging.INFO)


def keep_in(store: Path, project: str) -> None:
    """Logs to a project's file in the store from now on. A folder that cannot be written is reported by the store."""
    path = store / "logs" / f"{project}.jsonl"
    for handler in [handler for handler in _logger.handlers if getattr(handler, "baseFilename", "") != str(path)]:
        _logger.removeHandler(handler)
        handler.close()
    if not _logger.handlers:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        handler = _Quiet(path, delay=True)
        handler.setFormatter(JsonFormatter("{levelname}{message}", style="{", timestamp="at"))
        _logger.addHandler(handler)


@contextmanager
def of_stage(stage: str, key: str) -> Iterator[None]:
    """Attributes the lines that are logged within the block to this stage."""
    token = _stage.set({"stage": stage, "key": key})
    try:
        yield
    finally:
        _stage.reset(token)


def note(what: str, level: int = logging.INFO, **fields: Any) -> None:
    """Writes a line if a log is open."""
    if not _logger.handlers:
        return
    _logger.log(level, what, extra={**_run(), **_stage.get(), **fields})


def _run() -> dict[str, str]:
    if "prefect.context" not in sys.modules:  # so no flow runs; a machine that only trains has no Prefect
        return {}
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    return {"run": context.flow_run.name, "run_id": str(context.flow_run.id)}
