"""What stands on a Hub, judged from outside: from the server's folder, without the code that published it.

In: the folder of a `LocalHub`. Out: `Judged`: what was found under keys, what is there by halves, what twice.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.tasks.artifacts.provenance import RECORD, ArtifactRecord
from apprentice.tasks.artifacts.store_files import sha256_of

KEY = re.compile(r"[0-9a-f]{20}")
"""An artifact's tag, not one that a gate moves."""
RULES = ".gitattributes"
"""The Hub's own file, which is in every commit."""


class Judged(NamedTuple):
    """A Hub's artifacts."""

    keys: dict[str, str]
    """The revision by repository and key, such as "toy-questions:0ecc…"."""
    half: list[str]
    """Tags of which the commit does not hold exactly the files of its record with their hashes."""
    double: list[str]
    """Artifacts that more than one commit holds, or to which more than one tag of a key points."""


def judge(hub: Path) -> Judged:
    """Looks at every tag, and at every commit from which a branch comes."""
    keys: dict[str, str] = {}
    half: list[str] = []
    double: list[str] = []
    for state in sorted((hub / "repos").glob("*/*/*/repo.json")):
        folder, name = state.parent, state.parent.name
        refs = json.loads(state.read_bytes())
        tagged: Counter[str] = Counter()
        for tag, commit in refs["tags"].items():
            record = whole(folder, read(folder, commit))
            if record is None or (KEY.match(tag) and record.key != tag[:20]):
                half.append(f"{name}:{tag}")
            elif KEY.match(tag):
                tagged[record.revision] += 1
                keys[f"{name}:{tag}"] = record.revision
        held = Counter(record.revision for record in history(folder, refs["branches"]["main"]))
        double += [f"{name}:{revision}" for each in (tagged, held) for revision, count in each.items() if count > 1]
    return Judged(keys, half, double)


def read(folder: Path, commit: str) -> dict[str, Any]:
    return json.loads((folder / "commits" / commit).read_bytes())


def whole(folder: Path, commit: dict[str, Any]) -> ArtifactRecord | None:
    """The record of a commit that holds exactly its files; None for any other commit."""
    files = {path: folder / "blobs" / file["name"] for path, file in commit["files"].items() if path != RULES}
    if RECORD not in files:
        return None
    record = ArtifactRecord.model_validate_json(files.pop(RECORD).read_bytes())
    return record if {path: sha256_of(blob) for path, blob in files.items()} == record.files else None


def history(folder: Path, commit: str | None) -> list[ArtifactRecord]:
    """The records of a commit and of all before it, of those that hold an artifact; an empty commit counts as well."""
    records = []
    while commit:
        found = read(folder, commit)
        if record := whole(folder, found):
            records.append(record)
        commit = found["parent"]
    return records
