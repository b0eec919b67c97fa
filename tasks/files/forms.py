"""The rows of one file, whatever form it has.

In: a file of JSON lines, JSON, Parquet or Arrow, or a log of Inspect. Out: its rows with their places. Bytes that are
no UTF-8 stay in their row as half characters, so that only this row is refused; a file that cannot be parsed stops
the import with the place.
"""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import date, time
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from apprentice.tasks.reporting.errors import Stop


class Row(NamedTuple):
    where: str
    """The file and the line, or the row, from 1."""
    data: Any
    """What stands there. `rows_in` drops keys that are null."""


def rows_in(file: Path, columns: Iterable[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file, by its form; a file of another name is read as JSON lines. Raises Stop.

    Args:
        columns: Columns, with dots for what is nested, that stay in a row where they are null.
    """
    kept = frozenset(columns) | {"reward", "right"}
    for where, data in READERS[form_of(file) or ".jsonl"](file):
        yield Row(where, without_nulls(data, kept))


def form_of(file: Path) -> str | None:
    """The reader of a file by the end of its name, also of a compressed one; None for a file that is not read."""
    end = file.with_suffix("").suffix if file.suffix == PACKED else file.suffix
    return end if end in READERS and (file.suffix != PACKED or end in (".jsonl", ".json")) else None


def _text(file: Path) -> str:
    """The text of a file, with bytes that are no text as half characters. Raises Stop if it cannot be read."""
    try:
        read = gzip.decompress(file.read_bytes()) if file.suffix == PACKED else file.read_bytes()
        return read.decode(json.detect_encoding(read), "surrogateescape")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Stop(f"{file.name} cannot be read: {str(error)[:200]}.", "Write it again, as UTF-8.") from None


def _lines(text: str, file: Path) -> Iterator[Row]:
    for number, line in enumerate(StringIO(text, newline=None), 1):
        if not line.strip():
            continue
        where = f"{file.name}, line {number}"
        try:
            yield Row(where, json.loads(line))
        except (ValueError, RecursionError) as error:
            raise Stop(f"{where}: this is not JSON: {str(error)[:200]}.", "Correct or remove that line.") from None


def _of_json(file: Path) -> Iterator[Row]:
    """The items of a list; else the samples of an Inspect log, or the one value as a row; or JSON lines."""
    text = _text(file)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _begins_with_an_object(text):
            yield from _lines(text, file)
            return
        raise Stop(f"{file.name}: this is not JSON: {str(error)[:200]}.", "Correct or remove that file.") from None
    if isinstance(read, dict) and isinstance(read.get("samples"), list) and "eval" in read:
        read = read["samples"]
    if not isinstance(read, list):
        yield Row(file.name, read)
        return
    yield from (Row(f"{file.name}, item {number}", each) for number, each in enumerate(read, 1))


def _begins_with_an_object(text: str) -> bool:
    """Whether the first line is a whole object, as in JSON lines."""
    try:
        return isinstance(json.loads(text.lstrip().partition("\n")[0]), dict)
    except (ValueError, RecursionError):
        return False


def _of_parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet
    from pyarrow import ArrowException

    try:
        return _of_table(pyarrow.parquet.read_table(file), file)
    except (ArrowException, OSError, ValueError) as error:
        raise Stop(f"{file.name} is not a Parquet file: {str(error)[:200]}.", "Write it again, or as .jsonl.") from None


def _of_arrow(file: Path) -> Iterator[Row]:
    """A file of `save_to_disk`, or of the cache of the package datasets."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as there:
            in_file = there.read(6) == b"ARROW1"  # of Arrow's two formats the one that datasets does not write
            there.seek(0)
            opened = pyarrow.ipc.open_file(there) if in_file else pyarrow.ipc.open_stream(there)
            return _of_table(opened.read_all(), file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise Stop(
            f"{file.name} is not a file of save_to_disk: {str(error)[:200]}.", "Save it again, or as .jsonl."
        ) from None


def _of_table(table: Any, file: Path) -> Iterator[Row]:
    rows: Iterable[Any] = table.to_pylist(maps_as_pydicts="lossy")
    if b'"Json"' in (table.schema.metadata or {}).get(b"huggingface", b""):  # values of several types, as JSON text
        from datasets import Features

        rows = map(Features.from_arrow_schema(table.schema).decode_example, rows)
    return (Row(f"{file.name}, row {number}", row) for number, row in enumerate(rows, 1))


def _of_inspect(file: Path) -> Iterator[Row]:
    require_inspect(f"{file.name} needs Inspect AI to be read")
    from inspect_ai.log import read_eval_log

    try:
        samples = read_eval_log(str(file)).samples or []
    except (ValueError, OSError, BadZipFile) as error:
        raise Stop(f"{file.name} is not a log of Inspect: {str(error)[:200]}.", "Remove that file.") from None
    for number, sample in enumerate(samples, 1):
        yield Row(f"{file.name}, sample {number}", sample.model_dump(mode="json"))


def require_inspect(needs: str) -> None:
    """Raises Stop when Inspect is not installed, which begins with what needs it."""
    try:
        import inspect_ai  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "inspect_ai":
            raise
        raise Stop(
            f"{needs}, which is not installed.", "Install it: pip install 'openenv-apprentice[inspect]'"
        ) from None


def without_nulls(value: Any, kept: frozenset[str] = frozenset(), at: str = "") -> Any:
    """Drop keys that are null or not a number: Arrow writes them for every key that another row has.

    The row's columns `kept` and a message's content stay, because null means something there. In a call's arguments
    null stays as well, because only the tool's schema says whether it does.
    """
    if isinstance(value, dict):
        of_message = "content" if value.get("role") is not None else None
        return {
            name: _plain(each)
            if name in ARGUMENTS and isinstance(each, dict)
            else without_nulls(each, kept, f"{at}{name}.")
            for name, each in value.items()
            if name == of_message or f"{at}{name}" in kept or not _is_null(each)
        }
    return [without_nulls(each) for each in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it, with None for NaN, which pandas writes where a table has nothing."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if _is_null(value):
        return None
    return value if isinstance(value, str | int | float) else str(value)


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


ARGUMENTS = ("arguments", "args")
"""Keys of a call under which its arguments are."""
PACKED = ".gz"
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": lambda file: _lines(_text(file), file),
    ".parquet": _of_parquet,
    ".json": _of_json,
    ".eval": _of_inspect,
    ".arrow": _of_arrow,
}
"""By the end of a file's name."""
