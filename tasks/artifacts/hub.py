"""Where artifacts live for several machines: a local folder first, and the Hugging Face Hub behind it.

In: a folder that a stage filled. Out: an `Artifact`, the same as in a local store, found by its key on any machine.
An artifact is published in the folder first, and marked there as unsent until its commit on the Hub has its tag, which
is its key. A revision is a hash of the content, as in the local store, so keys do not depend on where and when it was
published; the commit is looked up by the key. Artifacts in the folder are not fetched again.
A run of one machine continues in the folder if the Hub is out of reach; the next one sends the unsent artifacts.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from apprentice.tasks.artifacts.hub_client import HubConnection
from apprentice.tasks.artifacts.hub_repositories import HubRepositories, Published
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import RECORD, ArtifactRecord, BadRecord
from apprentice.tasks.artifacts.store_files import damage
from apprentice.tasks.artifacts.types import Artifact, kinds
from apprentice.tasks.files.owners import modes_by_umask
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line

UNSENT = "unsent"
"""Beside refs/: the keys whose artifacts the Hub lacks, each with its revision."""
A = TypeVar("A", bound=Artifact)


@dataclass(eq=False)
class HubStore(LocalStore):
    """An artifact store on the Hub, with the folder `root` in front; see `LocalStore` and `HubConnection`."""

    private: bool = True
    patience: float = 600.0
    needed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._connection = HubConnection(self.namespace, self.patience, self.needed)
        self._hub = HubRepositories(self._connection, self.repository, self.private)

    @property
    def in_reach(self) -> bool:
        return not self._connection.is_lost

    def address(self, kind: type[Artifact], key: str) -> str:
        """As huggingface_hub's file system and DuckDB spell it."""
        return f"hf://{'datasets/' if kind.repo_type == 'dataset' else ''}{self.repository(kind)}@{key}"

    def find(self, kind: type[A], key: str) -> A | None:
        """The artifact that `key` names, or None; one request where the folder does not have it. Raises BadRecord where
        something else has its tag: it cannot be published beside that."""
        found = super().find(kind, key)
        if found and self._connection.needed and self._pointed(kind, key, UNSENT):
            found = None if damage(self._snapshot(found), found.revision) else self._give_key(found)
        return found or self.tagged(kind, key, key)

    def tagged(self, kind: type[A], tag: str, key: str | None = None) -> A | None:
        published = self._connection.or_without(lambda: self._hub.at_tag(kind, tag, key), lambda: None)
        return published.artifact if published else None

    def record(self, kind: type[Artifact], key: str, revision: str) -> ArtifactRecord:
        if self._has(kind, revision):
            return super().record(kind, key, revision)
        published = self._connection.or_without(lambda: self._at_key(kind, key, revision), lambda: None)
        if published is None:
            raise self._gone(kind, revision)
        return published.record

    def at(self, kind: type[A], revision: str) -> A:
        if self._has(kind, revision):
            return super().at(kind, revision)
        for published in self.published(kind):
            if published.artifact.revision == revision:
                return published.artifact
        raise self._gone(kind, revision)

    def tags(self, kind: type[Artifact], prefix: str) -> dict[str, str]:
        return {published.tag: published.artifact.revision for published in self.published(kind, prefix)}

    def published(self, kind: type[Artifact], prefix: str = "") -> Iterator[Published]:
        """Yields what the Hub's tags that begin with `prefix` point to, by the tags' names. A tag is passed over where
        it is on something else: anybody with the right to write may set it."""
        for tag in sorted(tag for tag in self._tags(kind) if tag.startswith(prefix)):
            try:
                if published := self._hub.at_tag(kind, tag):
                    yield published
            except BadRecord as bad:
                announce.warn(f"The tag {tag} is passed over. {bad.cause}")

    def _tags(self, kind: type[Artifact]) -> list[str]:
        return self._connection.or_without(lambda: self._hub.tags(kind), list[str])

    def tag(self, artifact: Artifact, tag: str) -> None:
        """Points a tag to an artifact. The Hub cannot move one in a single step: for a moment there is none."""
        kind, published = type(artifact), self._holding(artifact)
        if tag in self._hub.tags(kind):
            self.untag(kind, tag)
        if not self._hub.create_tag(kind, tag, published.commit):
            raise Stop(
                f"Another run set the tag {tag} of {artifact.repository} in this very moment.",
                "Run again: the new record is then used.",
            )

    def untag(self, kind: type[Artifact], tag: str) -> None:
        self._hub.delete_tag(kind, tag)

    def gather(self) -> None:
        """Puts the project's repositories into one collection. A token that may not is told of, and nothing else."""
        from huggingface_hub.errors import HfHubHTTPError

        used = [kind for kind in kinds() if self._tags(kind)]
        try:
            self._connection.or_without(lambda: self._hub.gather(self.project, self.namespace, used), lambda: None)
        except (Stop, HfHubHTTPError) as refused:
            announce.warn(f"The Hub shows no collection of {self.project}: {one_line(str(refused))}")

    def fetch(self, artifact: Artifact) -> Path:
        """The artifact's files, from the folder, or from the Hub where they are missing or damaged. Raises Stop."""
        snapshot = self._snapshot(artifact)
        with self._swap_in(snapshot):  # another process that wants the same waits, and finds it
            damaged = damage(snapshot, artifact.revision) if snapshot.is_dir() else []
            if damaged:
                announce.warn(f"{snapshot} is damaged ({', '.join(damaged)}): fetched anew.")
            if damaged or not snapshot.is_dir():
                published = self._holding(artifact)
                self._download(published, snapshot)
                if published.tag == artifact.key:
                    self._point(artifact, artifact.key)
        return snapshot

    def _give_key(self, artifact: A) -> A:
        """Gives an artifact its key in the folder, then on the Hub. Whoever made the same key there before has won."""
        self._point(artifact, artifact.key, UNSENT)
        now = time.time_ns()
        os.utime(self._mark(type(artifact), artifact.key), ns=(now, now))  # a file system's own clock is coarser
        super()._give_key(artifact)
        won = self._connection.or_without(lambda: self._send(artifact), lambda: None)
        if won is None:
            return artifact
        if won.revision != artifact.revision:
            super().untag(type(artifact), artifact.key)
        self._mark(type(artifact), artifact.key).unlink(missing_ok=True)
        return won

    def send_waiting(self) -> list[tuple[Artifact, bool]]:
        """Sends what the Hub lacks, the oldest first: each artifact, and whether the key is now its own.

        If another machine made a key meanwhile, it keeps that key. Ours is published beside it, because later artifacts
        name it. A damaged or missing artifact is reported and not sent.
        """
        return self._connection.or_without(lambda: list(self._send_all()), list[tuple[Artifact, bool]])

    def _send_all(self) -> Iterator[tuple[Artifact, bool]]:
        folders = {kind: self._mark(kind, "") for kind in kinds()}
        marks = [(mark, kind) for kind, folder in folders.items() for mark in folder.glob("[!.]*")]
        for mark, kind in sorted(marks, key=lambda each: (self._made_at(*each), each[0].stat().st_mtime_ns)):
            try:
                artifact = super().at(kind, mark.read_text())
                super().fetch(artifact)
            except Stop as stop:
                announce.warn(f"Not published: {stop}")
            else:
                won = self._send(artifact)
                beside = _conflict_tag(artifact.key, artifact.revision)
                if won.revision != artifact.revision and self._hub.at_tag(kind, beside) is None:
                    self._hub.create_tag(kind, beside, self._commit(artifact))
                yield artifact, won.revision == artifact.revision
            mark.unlink()

    def _made_at(self, mark: Path, kind: type[Artifact]) -> str:
        """When an unsent artifact was made, as its record says; a copy of the store has other times. It decides before
        the mark's own time, which it has in seconds."""
        try:
            return self._read(kind, mark.read_text()).provenance.made_at
        except (FileNotFoundError, BadRecord):
            return ""

    def _send(self, artifact: A) -> A:
        kind = type(artifact)
        if found := self._hub.at_tag(kind, artifact.key, artifact.key):
            return found.artifact
        if self._hub.create_tag(kind, artifact.key, self._commit(artifact)):
            return artifact
        found = self._hub.at_tag(kind, artifact.key, artifact.key)
        assert found is not None  # the tag exists
        return found.artifact

    def _commit(self, artifact: Artifact) -> str:
        record = self._read(type(artifact), artifact.revision)
        return self._hub.commit(type(artifact), self._snapshot(artifact), record)

    def _at_key(self, kind: type[Artifact], key: str, revision: str) -> Published | None:
        """What the Hub has of a revision, under its key or beside another machine's."""
        for tag in (key, _conflict_tag(key, revision)):
            published = self._hub.at_tag(kind, tag)
            if published is not None and published.artifact.revision == revision:
                return published
        return None

    def _holding(self, artifact: Artifact) -> Published:
        published = self._at_key(type(artifact), artifact.key, artifact.revision)
        if published is None:
            waits = self._pointed(type(artifact), artifact.key, UNSENT) == artifact.revision
            raise Stop(
                f"{artifact.repository} has no {artifact.revision[:12]} on the Hub.",
                "It waits here to be published: `apprentice publish RECIPE` sends it."
                if waits
                else "Run the recipe again: the stage that made it runs anew.",
            )
        return published

    def _download(self, published: Published, snapshot: Path) -> None:
        """Brings the files of a commit, compares every hash, and only then gives them their place."""
        artifact = published.artifact
        with self.staging() as folder:
            self._hub.download(published, folder)
            if wrong := damage(folder, artifact.revision):
                raise Stop(
                    f"{artifact.repository} at {published.commit[:12]} is not what its record says: "
                    f"{', '.join(wrong)}.",
                    "Somebody changed it, or the download was damaged: run again, or delete its tag to make it anew.",
                )
            modes_by_umask(folder)
            self._replace(snapshot, folder)

    def _has(self, kind: type[Artifact], revision: str) -> bool:
        return (self._folder(kind, self.repository(kind)) / "snapshots" / revision / RECORD).exists()

    def _mark(self, kind: type[Artifact], key: str) -> Path:
        return self._folder(kind, self.repository(kind)) / UNSENT / key


def _conflict_tag(key: str, revision: str) -> str:
    return f"{key}-{revision[:12]}"
