"""Digests by which two runs are compared: of files that are there, since those of none are alike."""

from pathlib import Path

from apprentice.tasks.artifacts.store_files import digest, hashes


def digest_of_some(folder: Path, files: str) -> str:
    """Of all that `files` fits below `folder`. Raises SystemExit where that is nothing."""
    if not hashes(folder, files):
        raise SystemExit(f"{folder} holds no {files}: there is nothing to compare")
    return digest(folder, files)
