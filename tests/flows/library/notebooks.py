"""Runs cells in a real Jupyter kernel, as a person would, and returns what they show."""

import os
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.prefect_database import prefect_home


class Notebook:
    """A notebook that was run in `folder`."""

    def __init__(self, cells: list[str], folder: Path, allow_errors: bool = False):
        book: Any = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        self.updates: list[str] = []
        client = NotebookClient(book, timeout=500, allow_errors=allow_errors, resources={"metadata": {"path": folder}})
        client.on_cell_executed = None
        self.client = client
        env = {**os.environ, "PREFECT_HOME": prefect_home(folder), "HF_HUB_OFFLINE": "1"}
        process_message = client.process_message

        def keep(message: Any, cell: Any, index: int) -> Any:
            if message["msg_type"] == "update_display_data":
                self.updates.append(message["content"]["data"].get("text/plain", ""))
            return process_message(message, cell, index)

        client.process_message = keep  # type: ignore[method-assign]
        try:
            client.execute(env=env)
        except CellExecutionError as failed:
            raise AssertionError(str(failed)) from None
        self.outputs: list[list[Any]] = [cell.outputs for cell in book.cells]

    def text(self, cell: int) -> str:
        """What a cell shows, as plain text."""
        return "\n".join(_text(each) for each in self.outputs[cell])


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return output.data.get("text/plain", "")
