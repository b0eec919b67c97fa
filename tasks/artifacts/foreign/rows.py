"""Rows of strangers: those of a file, a folder, or a dataset of the Hub at one commit.

In: the recipe's `collect.dataset`. Out: the files of the rows, the rows themselves, and their digest. Raises Stop.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from apprentice.tasks.artifacts.foreign.models import PATIENCE, is_repository
from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.files.forms import READERS, Row, form_of, rows_in
from apprentice.tasks.files.splits import ALL, KEPT, MORE, OTHERS, PATTERNS, SplitFiles, part_of, without_splits
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import DatasetSpec


def pinned_rows(spec: DatasetSpec) -> DatasetSpec:
    """The dataset with the digest of its rows, by which keys name it."""
    content = _digest(part_of_rows(spec).files)
    if spec.content not in (None, content):
        raise Stop(
            f"{spec.path} has other rows than before: {content[:12]}, not {spec.content[:12]}.",  # type: ignore[index]
            "Remove collect.dataset.content to use them as they are now.",
        )
    return spec.model_copy(update={"content": content})


def part_of_rows(spec: DatasetSpec) -> SplitFiles:
    """The files of a dataset's split, with a note about the files that are not read. Raises Stop."""
    there = Path(spec.path).expanduser()
    if there.is_file():
        without_splits(spec.path, spec.split, spec.config)
        if form_of(there) is None:
            raise Stop(f"{spec.path} cannot be read: it is no {', '.join(READERS)}.", "Convert it to one of them.")
        return SplitFiles([there])
    patterns = (*PATTERNS, *OTHERS, *MORE)
    if not there.is_dir():
        there = _downloaded(spec)
        patterns = tuple(sorted(patterns, key=lambda each: not each.endswith((".jsonl", ".parquet"))))
    elif spec.revision is not None:
        raise Stop(f"{spec.path} is a folder, which has no revision.", "Remove collect.dataset.revision.")
    files, said = part_of(spec.path, there, spec.split, spec.config, patterns)
    if {ALL, KEPT} <= {file.name for file in files}:
        files = [file for file in files if file.name != KEPT]
    if not any(file.stat().st_size for file in files):
        raise Stop(
            f"{spec.path}{said} holds no rollouts: no row in a file that ends in {', '.join(READERS)}.",
            "Check collect.dataset.path, or convert its files to one of these forms.",
        )
    return SplitFiles(files, said)


def rows_of(spec: DatasetSpec, part: SplitFiles | None = None) -> Iterator[Row]:
    """Yield the rows of all its files, by their names. Raises Stop for a file that cannot be read."""
    files = (part or part_of_rows(spec)).files
    if spec.content and _digest(files) != spec.content:
        raise Stop(f"{spec.path} changed while it was read.", "Run again when nothing writes to it.")
    if files[0].with_name(KEPT).exists() and not any(file.name == KEPT for file in files):
        announce.warn(f"{KEPT} is left out: {ALL} beside it has its rows, too.")
    for file in files:
        yield from rows_in(file, spec.columns.values())


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()


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


ON_HUB = [*(f"*{form}" for form in READERS), "*.json*.gz", "README.md", ".huggingface.yaml"]
"""What is downloaded of a dataset."""


def _downloaded(spec: DatasetSpec) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if not is_repository(spec.path) or spec.path.count("/") != 1:
        raise Stop(f"There is no file or folder {spec.path} with rollouts.", "Check collect.dataset.path.")
    if spec.revision is None:
        raise Stop(f"{spec.path} is no folder here, and a dataset of the Hub has a commit.", "Add its `revision`.")
    wanted = {"repo_type": "dataset", "revision": spec.revision, "allow_patterns": ON_HUB}
    try:
        return Path(ask(lambda: snapshot_download(spec.path, **wanted), spec.path.partition("/")[0], PATIENCE))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise Stop(
            f"The Hub has no dataset {spec.path} at {spec.revision[:12]}, or it needs permission.",
            "Check collect.dataset; for a private dataset set HF_TOKEN.",
        ) from None
