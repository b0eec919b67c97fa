"""Runs cells in a real Jupyter kernel, as a person would, and returns what they show."""

import os
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.prefect_database import prefect_home

SECONDS = 300
"""Of one cell."""


class Notebook:
    """A notebook that was run in `folder`, all its cells, also after one that failed."""

    def __init__(self, cells: list[str], folder: Path):
        book: Any = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        where = {"metadata": {"path": str(folder)}}
        client = _Client(book, timeout=SECONDS, allow_errors=True, resources=where)
        client.execute(env={**os.environ, "PREFECT_HOME": prefect_home(folder), "HF_HUB_OFFLINE": "1"})
        self.outputs: list[list[Any]] = [cell.outputs for cell in book.cells]
        self.bars = client.updates
        """What was shown for a moment, as plain text."""

    def text(self, cell: int) -> str:
        """What is left of a cell's output, as plain text."""
        return "\n".join(_text(each) for each in self.outputs[cell])

    def failed(self) -> list[str]:
        """The cells' errors."""
        return [_text(each) for outputs in self.outputs for each in outputs if each.output_type == "error"]


class _Client(NotebookClient):
    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.updates: list[str] = []

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"].get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return output.data.get("text/plain", "")
