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
WORKING = (*SCRIPT, "reasoning_gym/working.py")
"""The same where they show their working."""


EQUAL = {
    "6140bef636e7e82ae20c": "6f9b12558dc955dc82c7",  # openenv
    "973eed7b8dde3684943f": "0352521b48707e954208",  # number
    "ce5f04d391947e1a8040": "4c4b95903ae93a16e5df",  # browsergym
    "83f4992f7e6f7eea7985": "7cf6c2fc547b2c500114",  # catch
    "7fd1e820ae96e26eb573": "098496b3ae1dee9b72da",  # echo
    "7abfabb455857fe85a17": "e001a0d2cfd805c6a642",  # multi
    "f64da42bd2f9e4fe0eae": "a1ad4491728e73af3429",  # reasoning_gym
    "5557f1da40a4aac7f0f9": "09cb98801ed60f6921c1",  # sudoku
    "caf1adf8836aeb1b6692": "7a39ad7d426c18ae3af0",  # wordle
    "dd6f111a8e2881ec1831": "dfa7f41cbf97570d858a",  # the scripts
}
"""For code that changed and does the same: its digest now, and the digest that stored results have in their keys.

If a change leaves every question, reply, reward and scripted answer as it is (code moved, a name changed), put the new
digest here, before the oldest one. Then stored results stay valid. If it changes one of them, remove the entry.
"""


@cache  # the process runs the code it imported, even if the files change later
def digest_of(folder: Path) -> str:
    """Return 20 hex digits over all Python sources below a folder, or one file; line endings (CRLF or LF) make no
    difference."""
    files = folder.rglob("*.py") if folder.is_dir() else [folder]
    named = {file.relative_to(folder).as_posix(): file for file in files}
    computed = _digest([*sorted(named.items()), ("../policy.py", SHARED)])
    return EQUAL.get(computed, computed)


@cache
def digest_of_script(shows_working: bool = False) -> str:
    """Return 20 hex digits over the sources that decide how a scripted teacher errs, and how it works answers out."""
    files = WORKING if shows_working else SCRIPT
    computed = _digest([(name, Path(__file__).parent / name) for name in files])
    return EQUAL.get(computed, computed)


def joined(digests: list[str]) -> str:
    """Return one digest for several; a single one stays as it is."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()[:20]


def _digest(files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, file in files:
        source = file.read_bytes().replace(b"\r\n", b"\n")
        whole.update(f"{name}\0{len(source)}\0".encode() + source)
    return whole.hexdigest()[:20]
