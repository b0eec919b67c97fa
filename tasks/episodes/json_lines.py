"""Files with one JSON value a line, written at once or line by line by a process that may be killed.

In: values, or lines. Out: the same; half a line, which a killed process left, is cut off when the file is opened again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """A file of lines that grows. What is appended stays when the process is killed."""

    def __init__(self, path: Path):
        self.path = path
        path.touch()
        with path.open("r+b") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
            file.truncate(whole)

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file

    def append(self, *lines: bytes) -> None:
        with self.path.open("ab") as file:
            file.writelines(lines)


def as_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The values of a whole file."""
    return list(map(json.loads, path.read_bytes().splitlines()))
