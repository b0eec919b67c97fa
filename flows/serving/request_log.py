"""`apprentice serve --log`: what was asked and answered, as rows that `apprentice import` reads.

In: requests and their answers. Out: JSON lines; the first says what is in the file. A request that goes on with an
earlier conversation has that as its beginning, so a conversation of three turns is three rows, of which an import takes
the longest. Off by default; nothing is written beyond a size.
"""

import json
import os
import re
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.types import Checkpoint
from apprentice.tasks.formats.served_log import ABOUT, HEADER, joined
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

MASK = "***"


class RequestLog:
    """A file of served conversations.

    Args:
        file: Made, for its owner alone, or continued.
        masks: Regular expressions; what they match in a text is written as ***.
        drops: Fields of a row that are left out, such as tools.
        most_bytes: The file does not grow beyond that.

    Raises Stop where the file cannot be written, or a mask is no expression.
    """

    def __init__(self, file: Path, masks: Sequence[str] = (), drops: Iterable[str] = (), most_bytes: int = 100_000_000):
        self._masks = []
        for mask in masks:
            try:
                self._masks.append(re.compile(mask))
            except re.error as error:
                remedy = r"For example --log-mask '\d{4,}'."
                raise Stop(f"--log-mask {mask!r} is no regular expression: {error}.", remedy) from None
        self._drops = frozenset(drops)
        self._most = most_bytes
        self._full = False
        self._lock = threading.Lock()
        self.file = file
        if unknown := self._drops - ABOUT.keys():
            raise Stop(f"--log-drop {min(unknown)} is no field of a row.", f"The fields: {', '.join(ABOUT)}.")
        if "messages" in self._drops:
            raise Stop("Without its messages a row says nothing.", "Hide parts of them by --log-mask.")
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(descriptor).st_size
            os.close(descriptor)
            if not self._size:
                fields = {name: what for name, what in ABOUT.items() if name not in self._drops}
                what = "requests and answers of `apprentice serve`"
                self._append({HEADER: what, "fields": fields, "masks": [*masks]})
        except OSError as error:
            raise Stop(f"{file} cannot be written: {error.strerror}.", "Name another file with --log.") from error

    def write(self, body: dict[str, Any], answer: dict[str, Any], model: Checkpoint) -> None:
        """Append a row for a request and its whole answer."""
        choices = answer.get("choices") or [{}]
        self._write(body, choices[0].get("message") or {}, answer.get("usage") or {}, model)

    def write_stream(self, body: dict[str, Any], events: list[dict[str, Any]], model: Checkpoint) -> None:
        """Append a row for a request whose answer was streamed."""
        usage = next((each["usage"] for each in reversed(events) if each.get("usage")), {})
        self._write(body, joined(events), usage, model)

    def _write(self, body: dict[str, Any], said: dict[str, Any], usage: dict[str, Any], model: Checkpoint) -> None:
        row = {
            "messages": [*(body.get("messages") or []), {"role": "assistant"} | said],
            "tools": body.get("tools") or [],
            "key": model.key,
            "revision": model.revision,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "usage": usage,
        }
        self._append({name: self._masked(each) for name, each in row.items() if name not in self._drops})

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self._lock:
            if self._full or self._size + len(line) > self._most:
                if not self._full:
                    self._full = True
                    size = f"{self._most / 1e6:g} MB (--log-mb)"
                    announce.warn(f"{self.file} has reached {size}; nothing more is logged.")
                return
            try:
                with self.file.open("ab") as file:
                    file.write(line)
            except OSError as error:
                self._full = True
                announce.warn(f"{self.file} cannot be written ({error.strerror}); nothing more is logged.")
                return
            self._size += len(line)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            for mask in self._masks:
                value = mask.sub(MASK, value)
            return value
        if isinstance(value, dict):
            return {name: self._masked(each) for name, each in value.items()}
        return [self._masked(each) for each in value] if isinstance(value, list) else value
