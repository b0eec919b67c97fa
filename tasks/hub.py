"""Where artifacts live for several machines: the Hugging Face Hub, with a local folder in front.

In: a folder that a stage filled. Out: an `Artifact`, the same as in a local store, found by its key on any machine.
For each kind of artifact a repository, for each artifact a commit, and a tag that is its key, made last: a commit
without its tag is nothing. A revision is a hash of the content, as in the local store, so keys do not depend on where
and when something was published; the commit is looked up by the key. What the folder has is not asked for again.
https://huggingface.co/docs/huggingface_hub/guides/repository
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import tenacity

from apprentice.envs.metrics import count
from apprentice.envs.patience import failing_for
from apprentice.tasks import announce
from apprentice.tasks.artifacts import Artifact
from apprentice.tasks.errors import Stop
from apprentice.tasks.failures import failure_of
from apprentice.tasks.store import RECORD, LocalStore, hashes, revision_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT = 60.0
"""Seconds without a byte after which a request counts as lost."""
A = TypeVar("A", bound=Artifact)
R = TypeVar("R")


class Published(NamedTuple):
    """What the Hub has under a tag."""

    artifact: Any
    commit: str
    files: dict[str, str]
    """SHA-256 by path."""


class HubStore(LocalStore):
    """An artifact store on the Hub.

    Args:
        root: The folder in front.
        namespace: A user or an organisation to which the token may write.
        private: Whether repositories are made private.
        patience: Seconds that the Hub may be away, or busy.
    """

    def __init__(self, root: Path, project: str, namespace: str, private: bool = True, patience: float = 600.0):
        super().__init__(root, project, namespace)
        self._private = private
        self._patience = patience

    @cached_property
    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi()

    def find(self, kind: type[A], key: str) -> A | None:
        """The artifact that `key` names, or None; one request where the folder does not have it."""
        return super().find(kind, key) or self.tagged(kind, key)

    def tagged(self, kind: type[A], tag: str) -> A | None:
        published = self._published(kind, tag)
        return published.artifact if published else None

    def at(self, kind: type[A], revision: str) -> A:
        if (self._folder(kind, self.repository(kind)) / "snapshots" / revision).exists():
            return super().at(kind, revision)
        for tag in self._refs(kind):
            published = self._published(kind, tag)
            if published is not None and published.artifact.revision == revision:
                return published.artifact
        raise Stop(f"{self.repository(kind)} has no {revision[:12]} on the Hub.", "Look at what became of it.")

    def tags(self, kind: type[Artifact], prefix: str) -> dict[str, str]:
        found = {tag: self._published(kind, tag) for tag in self._refs(kind) if tag.startswith(prefix)}
        return {tag: published.artifact.revision for tag, published in sorted(found.items()) if published}

    def tag(self, artifact: Artifact, tag: str) -> None:
        """Points a tag to an artifact. The Hub cannot move one in a single step: for a moment there is none."""
        published = self._published(type(artifact), artifact.key)
        assert published is not None
        if tag in self._refs(type(artifact)):
            self.untag(type(artifact), tag)
        self._create_tag(type(artifact), tag, published.commit)

    def untag(self, kind: type[Artifact], tag: str) -> None:
        where = self._where(kind)
        self._ask(lambda: self._api.delete_tag(tag=tag, **where))

    def fetch(self, artifact: Artifact) -> Path:
        """The artifact's files, from the folder, or from the Hub with every hash compared. Raises Stop."""
        snapshot = self._snapshot(artifact)
        if not snapshot.is_dir():
            published = self._published(type(artifact), artifact.key)
            if published is None or published.artifact.revision != artifact.revision:
                raise Stop(
                    f"{artifact.repository} has no {artifact.revision[:12]} on the Hub.",
                    "Run the recipe again: the stage that made it runs anew.",
                )
            self._download(published, snapshot)
            self._point(artifact, artifact.key)
        return snapshot

    def publish(self, kind: type[A], key: str, staged: Path, counts: dict[str, Any], made_by: dict[str, Any]) -> A:
        """Publishes what stands in `staged`: a commit, then its tag. Whoever made the same key before has won."""
        artifact = self._keep(kind, key, staged, counts, made_by)
        self._ask(lambda: self._api.create_repo(**self._where(kind), private=self._private, exist_ok=True))
        commit = self._commit(artifact, f"{made_by['stage']} {key}")
        if not self._create_tag(kind, key, commit):
            won = self._published(kind, key)
            assert won is not None
            return won.artifact
        self._point(artifact, key)
        return artifact

    def _commit(self, artifact: Artifact, message: str) -> str:
        """Commits the artifact's files, and no others, on top of what is there; done again if that has moved.

        The client leaves out what it found unchanged, and deletes what it found there: on another parent the commit
        would hold files of two artifacts.
        """
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

        where = self._where(type(artifact))
        while True:
            head = self._ask(lambda: self._api.repo_info(**where)).sha
            try:
                return self._ask(
                    lambda head=head: self._api.upload_folder(
                        **where,
                        folder_path=self._snapshot(artifact),
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

    def _published(self, kind: type[Artifact], tag: str) -> Published | None:
        """What a tag points to, or None. One request: the record, whose answer names the commit."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        repository = self.repository(kind)
        url = hf_hub_url(repository, RECORD, repo_type=kind.repo_type, revision=tag)

        def get() -> Any:
            answer = get_session().get(url, headers=build_hf_headers(), follow_redirects=True)
            hf_raise_for_status(answer)
            return answer

        try:
            answer = self._ask(get)
        except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
            return None
        record = json.loads(answer.content)
        artifact = kind(
            repository=repository, revision=revision_of(answer.content), key=record["key"], **record["counts"]
        )
        commit = (answer.history or [answer])[0].headers["X-Repo-Commit"]
        return Published(artifact, commit, record["files"])

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
                    allow_patterns=[*published.files, RECORD],
                    local_dir=folder,
                )
            )
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            found = hashes(folder)
            wrong = [name for name, each in published.files.items() if found.get(name) != each]
            if wrong:
                where = f"{artifact.repository} at {published.commit[:12]}"
                raise Stop(
                    f"{where} is not what its record says: {', '.join(wrong)}.",
                    "Somebody changed it, or the download was damaged: run again, or delete its tag to make it anew.",
                )
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            if not snapshot.exists():
                folder.rename(snapshot)

    def _ask(self, call: Callable[[], R]) -> R:
        """What the Hub answers; asked again, with growing intervals, while it is away or busy. Raises Stop."""
        from huggingface_hub import get_session

        get_session().timeout = TIMEOUT  # the client's own is none: a Hub that hangs would hold a device for ever
        with _refusals(self.namespace):
            return _patiently(self._patience)(call)


def wait_until_hub_answers(patience: float) -> None:
    """Returns when the Hub says anything that is not an error of its own. Raises Stop after `patience` seconds."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, hf_raise_for_status

    def knock() -> None:
        hf_raise_for_status(get_session().get(f"{constants.ENDPOINT}/api/models?limit=1", follow_redirects=True))

    try:
        _patiently(patience)(knock)
    except Exception as error:
        if failure_of(error).boundary != "hub":
            raise
        raise Stop(
            f"The Hub was away for {patience:.0f} s ({type(error).__name__}).",
            "Retry this run when it is back: it goes on from there.",
        ) from error


def _patiently(patience: float) -> tenacity.Retrying:
    """Asks again, with growing intervals, while the Hub is away or busy."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: failure_of(error)[:2] == ("hub", "wait")),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=min(30.0, patience / 4)),
        stop=failing_for(patience),  # from the first failure on: an upload may take long
        before_sleep=_tell,
        reraise=True,
    )


def _tell(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    count("retries")
    if state.attempt_number in (1, 4) or state.attempt_number % 20 == 0:
        announce.warn(f"The Hub does not answer as it should ({type(error).__name__}); trying again.")


@contextmanager
def _refusals(namespace: str) -> Iterator[None]:
    """Says in words which permission is missing; never what was sent, which holds the token."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except RepositoryNotFoundError:
        raise
    except Exception as error:
        refused: BaseException | None = error  # an upload's is the cause of another one
        while refused is not None and not (isinstance(refused, HfHubHTTPError) and refused.response is not None):
            refused = refused.__cause__
        status = refused.response.status_code if refused is not None else 0
        if status == 401:
            raise Stop(
                "The Hub does not know the token (401).",
                "Set HF_TOKEN to one that is valid (https://huggingface.co/settings/tokens), and run again.",
            ) from None
        if status == 403:
            raise Stop(
                f"The Hub refused (403): the token may not write to {namespace}, or its storage is used up.",
                f"Give the token write permission for {namespace}, or make room there, and run again.",
            ) from None
        raise
