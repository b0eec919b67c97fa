"""Finds rollouts that exist: JSON lines or Parquet in a folder, or in a dataset of the Hub at one commit.

In: a `DatasetSpec`. Out: the same with the digest of its files, or the rows. Raises Stop where there are none.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.trust import PATIENCE, is_repository
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec

PATTERNS = ("*.jsonl", "data/*.jsonl", "*.parquet", "data/*.parquet")
"""The first that matches is read: a folder of ours, or the layout that `push_to_hub` of the package datasets writes."""
ALL, KEPT = "rollouts.jsonl", "kept.jsonl"


class Row(NamedTuple):
    where: str
    """The file and the line, or the row, from 1."""
    data: Any
    """What stands there, without keys that are null."""


def pinned_rows(spec: DatasetSpec) -> DatasetSpec:
    """The dataset with the digest of its rows, by which keys name it."""
    content = _digest(_files(spec))
    if spec.content not in (None, content):
        raise Stop(
            f"{spec.path} has other rows than before: {content[:12]}, not {spec.content[:12]}.",  # type: ignore[index]
            "Remove collect.dataset.content to use them as they are now.",
        )
    return spec.model_copy(update={"content": content})


def rows_of(spec: DatasetSpec) -> Iterator[Row]:
    """Yield the rows of all its files, by their names. Raises Stop for a file that cannot be read."""
    files = _files(spec)
    if spec.content and _digest(files) != spec.content:
        raise Stop(f"{spec.path} changed while it was read.", "Run again when nothing writes to it.")
    if files[0].with_name(KEPT).exists() and not any(file.name == KEPT for file in files):
        announce.warn(f"{KEPT} is left out: {ALL} beside it has its rows, too.")
    for file in files:
        yield from _of_parquet(file) if file.suffix == ".parquet" else _of_lines(file)


def _files(spec: DatasetSpec) -> list[Path]:
    folder = Path(spec.path).expanduser()
    if not folder.is_dir():
        folder = _downloaded(spec)
    elif spec.revision is not None:
        raise Stop(f"{spec.path} is a folder, which has no revision.", "Remove collect.dataset.revision.")
    files = next((found for pattern in PATTERNS if (found := sorted(folder.glob(pattern)))), [])
    if {ALL, KEPT} <= {file.name for file in files}:
        files = [file for file in files if file.name != KEPT]
    if not any(file.stat().st_size for file in files):
        raise Stop(f"{spec.path} holds no rollouts: no row in {' or '.join(PATTERNS)}.", "Check collect.dataset.path.")
    return files


def _digest(files: list[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _of_lines(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file.name}, line {number}"
        try:
            yield Row(where, _without_nulls(json.loads(line)))
        except (ValueError, RecursionError) as error:  # of UTF-8, too
            raise Stop(f"{where}: this is not JSON: {str(error)[:200]}.", "Correct or remove that line.") from None


def _of_parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet
    from pyarrow import ArrowException

    try:
        rows = pyarrow.parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise Stop(f"{file.name} is not a Parquet file: {str(error)[:200]}.", "Write it again, or as .jsonl.") from None
    yield from (Row(f"{file.name}, row {number}", _without_nulls(row)) for number, row in enumerate(rows, 1))


def _without_nulls(value: Any) -> Any:
    """Drop keys that are null or not a number: Arrow writes them for every key that another row has."""
    if isinstance(value, dict):
        return {
            name: _without_nulls(each)
            for name, each in value.items()
            if name in MAY_BE_NULL or not (each is None or (isinstance(each, float) and math.isnan(each)))
        }
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


MAY_BE_NULL = ("content", "reward")
"""Keys of a message and of a row whose null means something."""


def _downloaded(spec: DatasetSpec) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if not is_repository(spec.path) or spec.path.count("/") != 1:
        raise Stop(f"There is no folder {spec.path} with rollouts.", "Check collect.dataset.path.")
    if spec.revision is None:
        raise Stop(f"{spec.path} is no folder here, and a dataset of the Hub has a commit.", "Add its `revision`.")

    def download() -> str:
        return snapshot_download(
            spec.path, repo_type="dataset", revision=spec.revision, allow_patterns=["*.jsonl", "*.parquet"]
        )

    try:
        return Path(ask(download, spec.path.partition("/")[0], PATIENCE))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise Stop(
            f"The Hub has no dataset {spec.path} at {spec.revision[:12]}, or it needs permission.",
            "Check collect.dataset; for a private dataset set HF_TOKEN.",
        ) from None
