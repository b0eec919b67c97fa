"""Where artifacts live for several machines: the Hugging Face Hub, with a local folder in front.

In: a folder that a stage filled. Out: an `Artifact`, the same as in a local store, found by its key on any machine.
For each kind of artifact a repository, for each artifact a commit, and a tag that is its key, made last: a commit
without its tag is nothing. A revision is a hash of the content, as in the local store, so keys do not depend on where
and when something was published; the commit is looked up by the key. What the folder has is not asked for again.
A run of one machine goes on in the folder alone where the Hub is out of reach; what it made waits in the outbox.
https://huggingface.co/docs/huggingface_hub/guides/repository
"""

import glob
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from apprentice.tasks.artifacts.hub_client import ask, is_away
from apprentice.tasks.artifacts.local import LocalStore, damage
from apprentice.tasks.artifacts.outbox import Outbox
from apprentice.tasks.artifacts.provenance import LARGEST, RECORD, ArtifactRecord, BadRecord, artifact_of, record_from
from apprentice.tasks.artifacts.types import Artifact
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FIRST_PATIENCE = 20.0
"""Seconds in which the Hub must answer once, for a run that can go on without it."""
A = TypeVar("A", bound=Artifact)
R = TypeVar("R")


class Published(NamedTuple):
    """What the Hub has under a tag."""

    artifact: Any
    commit: str
    record: ArtifactRecord
    tag: str


class HubStore(LocalStore):
    """An artifact store on the Hub.

    Args:
        root: The folder in front.
        namespace: A user or an organisation to which the token may write.
        private: Whether repositories are made private.
        patience: Seconds that the Hub may be away, or busy.
        needed: Whether other machines wait there for what is published: then nothing is done without it.
        license: Written on every card, as the Hub knows it.
    """

    def __init__(
        self,
        root: Path,
        project: str,
        namespace: str,
        private: bool = True,
        patience: float = 600.0,
        needed: bool = True,
        *,
        license: str = "unknown",
    ):
        super().__init__(root, project, namespace, license=license)
        self._private = private
        self._patience = patience
        self._needed = needed
        self._has_answered = False
        self._away = False
        self.outbox = Outbox(self.root, namespace, project)

    @property
    def in_reach(self) -> bool:
        return not self._away

    @cached_property
    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi()

    def address(self, kind: type[Artifact], key: str) -> str:
        """As huggingface_hub's file system and DuckDB spell it."""
        return f"hf://{'datasets/' if kind.repo_type == 'dataset' else ''}{self.repository(kind)}@{key}"

    def find(self, kind: type[A], key: str) -> A | None:
        """The artifact that `key` names, or None; one request where the folder does not have it. Raises BadRecord where
        something else has its tag: it cannot be published beside that."""
        return super().find(kind, key) or self._tagged(kind, key, key)

    def tagged(self, kind: type[A], tag: str) -> A | None:
        return self._tagged(kind, tag)

    def _tagged(self, kind: type[A], tag: str, key: str | None = None) -> A | None:
        published = self._or_without(lambda: self._published(kind, tag, key), lambda: None)
        return published.artifact if published else None

    def record(self, kind: type[Artifact], key: str, revision: str) -> ArtifactRecord:
        if self._has(kind, revision):
            return super().record(kind, key, revision)
        for tag in (key, _conflict_tag(key, revision)):
            published = self._or_without(lambda tag=tag: self._published(kind, tag), lambda: None)
            if published is not None and published.artifact.revision == revision:
                return published.record
        raise self._gone(kind, revision)

    def record_under(self, kind: type[Artifact], tag: str) -> ArtifactRecord:
        """What made the artifact to which a tag points. Raises Stop."""
        published = self._published(kind, tag)
        if published is None:
            raise self._gone(kind, tag)
        return published.record

    def at(self, kind: type[A], revision: str) -> A:
        if self._has(kind, revision):
            return super().at(kind, revision)
        for tag in self._or_without(lambda: self._refs(kind), list[str]):
            published = self._if_ours(kind, tag)
            if published is not None and published.artifact.revision == revision:
                return published.artifact
        raise self._gone(kind, revision)

    def tags(self, kind: type[Artifact], prefix: str) -> dict[str, str]:
        refs = self._or_without(lambda: self._refs(kind), list[str])
        found = {tag: self._if_ours(kind, tag) for tag in refs if tag.startswith(prefix)}
        return {tag: published.artifact.revision for tag, published in sorted(found.items()) if published}

    def tag(self, artifact: Artifact, tag: str) -> None:
        """Points a tag to an artifact. The Hub cannot move one in a single step: for a moment there is none."""
        published = self._holding(artifact)
        if tag in self._refs(type(artifact)):
            self.untag(type(artifact), tag)
        if not self._create_tag(type(artifact), tag, published.commit):
            raise Stop(
                f"Another run set the tag {tag} of {artifact.repository} in this very moment.",
                "Run again: what it says then is taken into account.",
            )

    def untag(self, kind: type[Artifact], tag: str) -> None:
        where = self._where(kind)
        self._ask(lambda: self._api.delete_tag(tag=tag, **where))

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
        """A commit, then its tag. Whoever made the same key before has won.

        Where the Hub is out of reach, and not needed, the artifact is kept in the folder and marked.
        """
        won = self._or_without(lambda: self._send(artifact), lambda: self.outbox.add(artifact) or artifact)
        return super()._give_key(won) if won.revision == artifact.revision else won

    def send_waiting(self) -> list[tuple[Artifact, bool]]:
        """Publishes what waits, the oldest first: each artifact, and whether the key is now its own.

        Where another machine made a key meanwhile, that one keeps it, and ours is published beside it, as what was
        made from ours names it. What is damaged, or gone, is said and not published.
        """
        return self._or_without(self._send_all, list[tuple[Artifact, bool]])

    def _send_all(self) -> list[tuple[Artifact, bool]]:
        sent = []
        for waiting in self.outbox.waiting():
            try:
                artifact = super().at(waiting.kind, waiting.revision)
                super().fetch(artifact)
            except Stop as stop:
                announce.warn(f"Not published: {stop}")
            else:
                won = self._send(artifact)
                other = _conflict_tag(artifact.key, artifact.revision)
                if won.revision != artifact.revision and self._published(waiting.kind, other) is None:
                    self._create_tag(waiting.kind, other, self._commit(artifact))
                sent.append((artifact, won.revision == artifact.revision))
            self.outbox.sent(waiting)
        return sent

    def _send(self, artifact: A) -> A:
        """Commits and tags; returns the artifact that has the key then."""
        kind = type(artifact)
        self._ask(lambda: self._api.create_repo(**self._where(kind), private=self._private, exist_ok=True))
        found = self._published(kind, artifact.key, artifact.key)
        if found is None:
            if self._create_tag(kind, artifact.key, self._commit(artifact)):
                return artifact
            found = self._published(kind, artifact.key, artifact.key)
            assert found is not None
        return found.artifact

    def _commit(self, artifact: Artifact) -> str:
        """Commits the artifact's files, and no others, on top of what is there; done again if that has moved.

        The client leaves out what it found unchanged, and deletes what it found there: on another parent the commit
        would hold files of two artifacts.
        """
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

        where = self._where(type(artifact))
        record = self._read(type(artifact), artifact.revision)
        message = f"{record.made_by['stage']} {artifact.key}"
        while True:
            head = self._ask(lambda: self._api.repo_info(**where)).sha
            try:
                return self._ask(
                    lambda head=head: self._api.upload_folder(
                        **where,
                        folder_path=self._snapshot(artifact),
                        allow_patterns=_exactly(record),
                        delete_patterns="*",
                        commit_message=message,
                        parent_commit=head,
                    )
                ).oid
            except EntryNotFoundError:
                continue  # what was to be deleted is gone: another artifact was published meanwhile
            except HfHubHTTPError as error:
                if error.response is None or error.response.status_code != 412:
                    raise

    def _create_tag(self, kind: type[Artifact], tag: str, commit: str) -> bool:
        """Whether the tag was made here, and was not there before."""
        from huggingface_hub.errors import HfHubHTTPError

        where = self._where(kind)
        try:
            self._ask(lambda: self._api.create_tag(tag=tag, revision=commit, **where))
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code != 409:
                raise
            return False
        return True

    def _published(self, kind: type[Artifact], tag: str, key: str | None = None) -> Published | None:
        """What a tag points to, or None. One request: the record, whose answer names the commit.

        Raises BadRecord where that is no artifact of this kind, or not the one of `key`.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

        repository = self.repository(kind)
        url = hf_hub_url(repository, RECORD, repo_type=kind.repo_type, revision=tag)
        try:
            content, commit = self._ask(lambda: _read_from(url))
        except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
            return None
        record = record_from(content, f"{RECORD} of {repository}@{tag}")
        artifact = artifact_of(kind, repository, record.revision, record, key)
        return Published(artifact, commit, record, tag)

    def _if_ours(self, kind: type[Artifact], tag: str) -> Published | None:
        """As `_published`; None where the tag, which anybody with the right to write may set, is on something else."""
        try:
            return self._published(kind, tag)
        except BadRecord as bad:
            announce.warn(f"The tag {tag} is passed over. {str(bad).partition(chr(10))[0]}")
            return None

    def _holding(self, artifact: Artifact) -> Published:
        """Where the Hub has an artifact. Raises Stop."""
        for tag in (artifact.key, _conflict_tag(artifact.key, artifact.revision)):
            published = self._published(type(artifact), tag)
            if published is not None and published.artifact.revision == artifact.revision:
                return published
        waits = any(waiting.revision == artifact.revision for waiting in self.outbox.waiting())
        raise Stop(
            f"{artifact.repository} has no {artifact.revision[:12]} on the Hub.",
            "It waits here to be published: `apprentice publish RECIPE` sends it."
            if waits
            else "Run the recipe again: the stage that made it runs anew.",
        )

    def _where(self, kind: type[Artifact]) -> dict[str, Any]:
        return {"repo_id": self.repository(kind), "repo_type": kind.repo_type}

    def _refs(self, kind: type[Artifact]) -> list[str]:
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            refs = self._ask(lambda: self._api.list_repo_refs(**self._where(kind)))
        except RepositoryNotFoundError:
            return []
        return [tag.name for tag in refs.tags]

    def _download(self, published: Published, snapshot: Path) -> None:
        """Brings the files of a commit, compares every hash, and only then gives them their place."""
        artifact = published.artifact
        with self.staging() as folder:
            self._ask(
                lambda: self._api.snapshot_download(
                    artifact.repository,
                    repo_type=type(artifact).repo_type,
                    revision=published.commit,
                    allow_patterns=_exactly(published.record),
                    local_dir=folder,
                )
            )
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            if wrong := damage(folder, artifact.revision):
                raise Stop(
                    f"{artifact.repository} at {published.commit[:12]} is not what its record says: "
                    f"{', '.join(wrong)}.",
                    "Somebody changed it, or the download was damaged: run again, or delete its tag to make it anew.",
                )
            self._replace(snapshot, folder)

    def _has(self, kind: type[Artifact], revision: str) -> bool:
        return (self._folder(kind, self.repository(kind)) / "snapshots" / revision / RECORD).exists()

    def _or_without(self, remote: Callable[[], R], local: Callable[[], R]) -> R:
        """What the Hub says, or, where it is out of reach and not needed, what is done without it."""
        from huggingface_hub import constants

        if self._needed:
            return remote()
        if not self._away and not constants.HF_HUB_OFFLINE:
            try:
                return remote()
            except Exception as error:
                if not is_away(error):
                    raise
        self._lose()
        return local()

    def _lose(self) -> None:
        """From now on it is done without the Hub."""
        if not self._away:
            self._away = True
            announce.warn(
                f"The Hub is out of reach: what is there already is not seen, and what is made waits in {self.root}. "
                "The next run sends it, or `apprentice publish RECIPE`."
            )

    def _ask(self, call: Callable[[], R]) -> R:
        """What the Hub answers. Raises Stop, and what the client raises where it stays away."""
        first = not self._needed and not self._has_answered
        try:
            answer = ask(call, self.namespace, min(FIRST_PATIENCE, self._patience) if first else self._patience)
        except Exception as error:
            if not self._needed and is_away(error):
                self._lose()
            raise
        self._has_answered = True
        return answer


def _read_from(url: str) -> tuple[bytes, str]:
    """A record's bytes, of a larger file no more than shows that it is too large, and the commit that it stands in."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    with get_session().stream("GET", url, headers=build_hf_headers(), follow_redirects=True) as answer:
        if answer.is_error:
            answer.read()
            hf_raise_for_status(answer)
        content = bytearray()
        for part in answer.iter_bytes(2**16):
            content += part
            if len(content) > LARGEST:
                break
        return bytes(content), (answer.history or [answer])[0].headers.get("X-Repo-Commit", "")


def _exactly(record: ArtifactRecord) -> list[str]:
    """Patterns for an artifact's own files: a name may hold what is a wildcard in a pattern."""
    return [glob.escape(name) for name in (*record.files, RECORD)]


def _conflict_tag(key: str, revision: str) -> str:
    """The tag of an artifact whose key another machine's has."""
    return f"{key}-{revision[:12]}"
