"""Finds rollouts that exist: a file, a folder, or a dataset of the Hub at one commit.

In: a `DatasetSpec`. Out: the same with the digest of its files, or the rows. Raises Stop where there are none.
Read are JSON lines, Parquet, JSON (one value or a list) and logs of Inspect AI.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.trust import PATIENCE, is_repository
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec

PATTERNS = ("*.jsonl", "data/*.jsonl", "*.parquet", "data/*.parquet")
OTHERS = ("*.eval", "*.json", "**/trajectory.json", "**/*.jsonl", "**/*.parquet")
"""The first that matches is read: a folder of ours, or the layout that `push_to_hub` of the package datasets writes;
then Inspect's logs, JSON files such as exported trajectories, Harbor's folders of trials, and other layouts."""
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
        yield from READERS.get(file.suffix, _of_lines)(file)


def _files(spec: DatasetSpec) -> list[Path]:
    folder = Path(spec.path).expanduser()
    if folder.is_file():
        if folder.suffix not in READERS:
            raise Stop(f"{spec.path} cannot be read: it is no {', '.join(READERS)}.", "Convert it to one of them.")
        return [folder]
    if not folder.is_dir():
        folder = _downloaded(spec)
    elif spec.revision is not None:
        raise Stop(f"{spec.path} is a folder, which has no revision.", "Remove collect.dataset.revision.")
    files = next((found for pattern in (*PATTERNS, *OTHERS) if (found := sorted(folder.glob(pattern)))), [])
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


def _of_json(file: Path) -> Iterator[Row]:
    """The items of a list; else the samples of an Inspect log, or the one value as a row."""
    try:
        read = json.loads(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise Stop(f"{file.name}: this is not JSON: {str(error)[:200]}.", "Correct or remove that file.") from None
    if isinstance(read, dict) and isinstance(read.get("samples"), list) and "eval" in read:
        read = read["samples"]
    if not isinstance(read, list):
        yield Row(file.name, _without_nulls(read))
        return
    yield from (Row(f"{file.name}, item {number}", _without_nulls(each)) for number, each in enumerate(read, 1))


def _of_inspect(file: Path) -> Iterator[Row]:
    try:
        from inspect_ai.log import read_eval_log
    except ModuleNotFoundError as missing:
        if missing.name != "inspect_ai":
            raise
        raise Stop(
            f"{file.name} needs Inspect AI to be read, which is not installed.",
            "Install it: pip install 'openenv-apprentice[inspect]'",
        ) from None
    try:
        samples = read_eval_log(str(file)).samples or []
    except (ValueError, OSError, BadZipFile) as error:
        raise Stop(f"{file.name} is not a log of Inspect: {str(error)[:200]}.", "Remove that file.") from None
    for number, sample in enumerate(samples, 1):
        yield Row(f"{file.name}, sample {number}", _without_nulls(sample.model_dump(mode="json")))


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


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _of_lines,
    ".parquet": _of_parquet,
    ".json": _of_json,
    ".eval": _of_inspect,
}
"""By the end of a file's name."""


def newest_commit(repository: str) -> str:
    """The commit of a dataset's main branch on the Hub. Raises Stop where there is none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        found = ask(lambda: HfApi().dataset_info(repository).sha, repository.partition("/")[0], PATIENCE)
    except RepositoryNotFoundError:
        raise Stop(f"The Hub has no dataset {repository}, or it needs permission.", "Or set HF_TOKEN.") from None
    assert found is not None
    return found


def _downloaded(spec: DatasetSpec) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if not is_repository(spec.path) or spec.path.count("/") != 1:
        raise Stop(f"There is no file or folder {spec.path} with rollouts.", "Check collect.dataset.path.")
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
