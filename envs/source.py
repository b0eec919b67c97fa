"""The digest of an environment's code, which enters every key: whoever changes a game makes anew what was played in it.

In: an environment's folder. Out: hex digits, the same for a checkout and for an installed wheel of the same sources.
"""

import hashlib
from functools import cache
from pathlib import Path


@cache  # what runs is what was imported, whatever an editor does to the files meanwhile
def digest_of(folder: Path) -> str:
    """20 hex digits over all Python sources below a folder; whether lines end as on Windows does not count."""
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*.py"), key=lambda file: file.relative_to(folder).as_posix()):
        source = file.read_bytes().replace(b"\r\n", b"\n")
        whole.update(f"{file.relative_to(folder).as_posix()}\0{len(source)}\0".encode() + source)
    return whole.hexdigest()[:20]
