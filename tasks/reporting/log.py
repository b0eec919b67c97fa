"""The structured log: one JSON line per event, with its run, stage and episode.

In: a message and fields. Out: `<store>/logs/<project>.jsonl`, to which all processes of a project append whole lines.
Successful episodes are only counted; an episode gets a line when it fails, is lost, or its answer is requested again.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext
from pythonjsonlogger.json import JsonFormatter


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
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    return {"run": context.flow_run.name, "run_id": str(context.flow_run.id)}
