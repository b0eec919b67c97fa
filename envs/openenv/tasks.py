"""Reads the tasks of an environment that takes them by name.

In: rows in a recipe, a file of JSON lines, or how many seeds are tasks. Out: rows, each what one reset sends.
The rows themselves are part of a recipe from then on: of its keys, and of what is sent to another machine.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.envs.paths import path_from

MOST_TASKS = 20_000
"""Most rows."""


def rows_of(given: Any) -> Any:
    """Return a row for each of so many seeds, or the rows in a file of JSON lines, and anything else as it is.

    Raises ValueError.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= MOST_TASKS:
            raise ValueError(f"tasks: {given} is no number of seeds from 1 to {MOST_TASKS:,}")
        return [{"seed": seed} for seed in range(given)]
    if not isinstance(given, str | Path):
        return given
    path = path_from(given)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"tasks: {path} cannot be read ({error}); it is a file with a JSON object in each line"
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"tasks: line {number} of {path} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f'tasks: line {number} of {path} is no JSON object, such as {{"task_id": "easy"}}')
        rows.append(row)
    if not rows:
        raise ValueError(f"tasks: {path} has no line")
    return rows
