"""Progress bars: one display on a terminal, or below a notebook's cell, for all stages that run at once.

In: a console, titles, totals. Out: bars that are gone when their stages have ended.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

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
