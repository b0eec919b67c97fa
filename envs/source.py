"""The digest of an environment's code. It is part of every key, so a change to a game invalidates cached results.

In: an environment's folder. Out: hex digits, the same for a checkout and for an installed wheel of the same sources.
envs/policy.py counts as part of every folder: it decides on which questions the scripted teachers err.
"""

import hashlib
from functools import cache
from pathlib import Path

SHARED = Path(__file__).with_name("policy.py")
SCRIPT = ("mistakes.py", "serving/scripted_teacher.py")
"""How scripted teachers err: part of the keys of their rollouts only, so that a model's rollouts keep theirs."""


EQUAL = {
    "3d301cf5ac6526b27100": "4c4b95903ae93a16e5df",  # browsergym
    "fa9dd5c018aeacbdd3d1": "7cf6c2fc547b2c500114",  # catch
    "1bfb65838095efe71dbd": "098496b3ae1dee9b72da",  # echo
    "a76e89bc43c05c720af6": "e001a0d2cfd805c6a642",  # multi
    "766ce706c834d09bde66": "a1ad4491728e73af3429",  # reasoning_gym
    "b1d9a948296bcfb8b2bb": "09cb98801ed60f6921c1",  # sudoku
    "2e6530d5c28125f6fec8": "3a8d551c6cb55e2ae8c6",  # verifiers
    "27741c693bcf2801e996": "7a39ad7d426c18ae3af0",  # wordle
}
"""Digests of environments whose code does the same, and the digests that they had before: it only moved between files,
or compares a reward up to its rounding. Stored results stay valid. An entry whose code has changed since stands for
nothing any more and is removed."""


@cache  # the process runs the code it imported, even if the files change later
def digest_of(folder: Path) -> str:
    """Return 20 hex digits over all Python sources below a folder, or one file; line endings (CRLF or LF) make no
    difference."""
    files = folder.rglob("*.py") if folder.is_dir() else [folder]
    named = {file.relative_to(folder).as_posix(): file for file in files}
    computed = _digest([*sorted(named.items()), ("../policy.py", SHARED)])
    return EQUAL.get(computed, computed)


@cache
def digest_of_script() -> str:
    """Return 20 hex digits over the sources that decide how a scripted teacher errs."""
    return _digest([(name, Path(__file__).parent / name) for name in SCRIPT])


def joined(digests: list[str]) -> str:
    """Return one digest for several; a single one stays as it is."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()[:20]


def _digest(files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, file in files:
        source = file.read_bytes().replace(b"\r\n", b"\n")
        whole.update(f"{name}\0{len(source)}\0".encode() + source)
    return whole.hexdigest()[:20]
