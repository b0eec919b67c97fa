"""The Hub's side of a store: for each kind of artifact a repository, for each artifact a commit and its tags."""

import glob
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from apprentice.tasks.artifacts.hub_client import HubConnection
from apprentice.tasks.artifacts.provenance import LARGEST, RECORD, ArtifactRecord, artifact_of, record_from
from apprentice.tasks.artifacts.types import Artifact

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class Published(NamedTuple):
    artifact: Any
    commit: str
    record: ArtifactRecord
    tag: str


@dataclass
class HubRepositories:
    """The repositories of one project."""

    connection: HubConnection
    name: Callable[[type[Artifact]], str]
    """The repository of a kind of artifacts."""
    private: bool
    """Whether repositories are made private."""

    @cached_property
    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi()

    def commit(self, kind: type[Artifact], folder: Path, record: ArtifactRecord) -> str:
        """Commits a record's files, and no others, on top of the newest commit; repeated if that has moved.

        The client leaves out unchanged files and deletes old ones. On another parent the commit would have files of two
        artifacts.
        """
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

        where = self._where(kind)
        self.connection.ask(lambda: self._api.create_repo(**where, private=self.private, exist_ok=True))
        message = f"{record.made_by['stage']} {record.key}"
        while True:
            head = self.connection.ask(lambda: self._api.repo_info(**where)).sha
            try:
                return self.connection.ask(
                    lambda head=head: self._api.upload_folder(
                        **where,
                        folder_path=folder,
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

    def create_tag(self, kind: type[Artifact], tag: str, commit: str) -> bool:
        """Whether the tag was made here, and was not there before."""
        from huggingface_hub.errors import HfHubHTTPError

        where = self._where(kind)
        try:
            self.connection.ask(lambda: self._api.create_tag(tag=tag, revision=commit, **where))
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code != 409:
                raise
            return False
        return True

    def delete_tag(self, kind: type[Artifact], tag: str) -> None:
        self.connection.ask(lambda: self._api.delete_tag(tag=tag, **self._where(kind)))

    def at_tag(self, kind: type[Artifact], tag: str, key: str | None = None) -> Published | None:
        """What a tag points to, or None. One request: the record, whose answer names the commit.

        Raises BadRecord where that is no artifact of this kind, or not the one of `key`.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

        repository = self.name(kind)
        url = hf_hub_url(repository, RECORD, repo_type=kind.repo_type, revision=tag)
        try:
            content, commit = self.connection.ask(lambda: _read_from(url))
        except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
            return None
        record = record_from(content, f"{RECORD} of {repository}@{tag}")
        artifact = artifact_of(kind, repository, record.revision, record, key)
        return Published(artifact, commit, record, tag)

    def tags(self, kind: type[Artifact]) -> list[str]:
        """The names of all tags; none where there is no repository."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            refs = self.connection.ask(lambda: self._api.list_repo_refs(**self._where(kind)))
        except RepositoryNotFoundError:
            return []
        return [tag.name for tag in refs.tags]

    def download(self, published: Published, folder: Path) -> None:
        self.connection.ask(
            lambda: self._api.snapshot_download(
                published.artifact.repository,
                repo_type=published.artifact.repo_type,
                revision=published.commit,
                allow_patterns=_exactly(published.record),
                local_dir=folder,
            )
        )
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    def gather(self, title: str, namespace: str, kinds: list[type[Artifact]]) -> None:
        """Puts these kinds' repositories into a collection, which is made where there is none of this title."""
        options = {"namespace": namespace, "private": self.private, "exists_ok": True}
        collection = self.connection.ask(lambda: self._api.create_collection(title, **options))
        there = {(item.item_type, item.item_id) for item in collection.items}
        for kind in kinds:
            if (kind.repo_type, name := self.name(kind)) not in there:
                item = {"item_id": name, "item_type": kind.repo_type, "exists_ok": True}
                self.connection.ask(lambda item=item: self._api.add_collection_item(collection.slug, **item))

    def _where(self, kind: type[Artifact]) -> dict[str, Any]:
        return {"repo_id": self.name(kind), "repo_type": kind.repo_type}


def _read_from(url: str) -> tuple[bytes, str]:
    """A record's bytes and its commit; of a larger file only enough to show that it is too large."""
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
    return [glob.escape(name) for name in (*record.files, RECORD)]
