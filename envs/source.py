"""The digest of an environment's code, which enters every key: whoever changes a game makes anew what was played in it.

In: an environment's folder. Out: hex digits, the same for a checkout and for an installed wheel of the same sources.
What all scripted teachers share (envs/policy.py) counts as part of every folder: it decides where they err.
"""

import hashlib
from functools import cache
from pathlib import Path

SHARED = Path(__file__).with_name("policy.py")


@cache  # what runs is what was imported, whatever an editor does to the files meanwhile
def digest_of(folder: Path) -> str:
    """20 hex digits over all Python sources below a folder; whether lines end as on Windows does not count."""
    whole = hashlib.sha256()
    named = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    for name, file in [*sorted(named.items()), ("../policy.py", SHARED)]:
        source = file.read_bytes().replace(b"\r\n", b"\n")
        whole.update(f"{name}\0{len(source)}\0".encode() + source)
    return whole.hexdigest()[:20]
