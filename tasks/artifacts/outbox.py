"""What was made while the Hub was out of reach, and waits to be published.

In: artifacts of the folder. Out: the same, in the order in which they were made, so that what an artifact was made from
is published before it.
"""

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from apprentice.tasks.artifacts.types import Artifact, kind_named


class Waiting(NamedTuple):
    """One artifact that the Hub does not have yet."""

    kind: type[Artifact]
    key: str
    revision: str
    mark: Path


class Outbox:
    """The marks of one project.

    Args:
        root: The store's folder.
        namespace: Of the Hub.
        project: The recipe's name.
    """

    def __init__(self, root: Path, namespace: str, project: str):
        self._folder = root / ".waiting" / namespace / project

    def add(self, artifact: Artifact) -> None:
        """Marks an artifact. A mark is there whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        mark = self._folder / f"{time.time_ns():020d}-{artifact.key}.json"
        beside = mark.with_suffix(".half")
        beside.write_text(
            json.dumps({"kind": type(artifact).__name__, "key": artifact.key, "revision": artifact.revision})
        )
        os.replace(beside, mark)

    def waiting(self) -> list[Waiting]:
        """What waits, the oldest first."""
        marks = [(mark, json.loads(mark.read_text())) for mark in sorted(self._folder.glob("*.json"))]
        return [Waiting(kind_named(each["kind"]), each["key"], each["revision"], mark) for mark, each in marks]

    def sent(self, waiting: Waiting) -> None:
        """Takes the mark away."""
        waiting.mark.unlink(missing_ok=True)
