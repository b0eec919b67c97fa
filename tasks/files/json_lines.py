"""Files of JSON lines that stages read and write."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """An append-only file of lines; appended lines survive a kill of the process."""

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
    return list(map(json.loads, path.read_bytes().splitlines()))
