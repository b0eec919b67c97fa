"""Finds rollouts that exist: JSON lines in a folder, or in a dataset of the Hub at one commit.

In: a `DatasetSpec`. Out: the same with the digest of its rows, or the rows. Raises Stop where there are none.
"""

import hashlib
from pathlib import Path

from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.trust import PATIENCE, is_repository
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec


def pinned_rows(spec: DatasetSpec) -> DatasetSpec:
    """The dataset with the digest of its rows, by which keys name it."""
    content = hashlib.sha256(b"".join(rows_of(spec.model_copy(update={"content": None})))).hexdigest()
    if spec.content not in (None, content):
        raise Stop(
            f"{spec.path} has other rows than before: {content[:12]}, not {spec.content[:12]}.",  # type: ignore[index]
            "Remove collect.dataset.content to use them as they are now.",
        )
    return spec.model_copy(update={"content": content})


def rows_of(spec: DatasetSpec) -> list[bytes]:
    """The lines of all its .jsonl files, by their names."""
    folder = Path(spec.path).expanduser()
    if not folder.is_dir():
        folder = _downloaded(spec)
    elif spec.revision is not None:
        raise Stop(f"{spec.path} is a folder, which has no revision.", "Remove collect.dataset.revision.")
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines(keepends=True)]
    if not lines:
        raise Stop(f"{spec.path} holds no rollouts: no line of a .jsonl file.", "Check collect.dataset.path.")
    if spec.content and hashlib.sha256(b"".join(lines)).hexdigest() != spec.content:
        raise Stop(f"{spec.path} changed while it was read.", "Run again when nothing writes to it.")
    return lines


def _downloaded(spec: DatasetSpec) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if not is_repository(spec.path) or spec.path.count("/") != 1:
        raise Stop(f"There is no folder {spec.path} with rollouts.", "Check collect.dataset.path.")
    if spec.revision is None:
        raise Stop(f"{spec.path} is no folder here, and a dataset of the Hub has a commit.", "Add its `revision`.")

    def download() -> str:
        return snapshot_download(spec.path, repo_type="dataset", revision=spec.revision, allow_patterns="*.jsonl")

    try:
        return Path(ask(download, spec.path.partition("/")[0], PATIENCE))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise Stop(
            f"The Hub has no dataset {spec.path} at {spec.revision[:12]}, or it needs permission.",
            "Check collect.dataset; for a private dataset set HF_TOKEN.",
        ) from None
