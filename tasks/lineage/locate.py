"""Finds an artifact by its key, its revision, a tag, or a unique beginning of one of them, and one file of it.

In: such a name, and where artifacts lie: a folder, the Hub with that folder in front. Out: the store in which the
artifact is, and its whole name. A key says neither project nor kind, so every repository is asked.
"""

import difflib
import glob
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.hub_client import ask, wait_until_hub_answers
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import BadRecord, Parent, artifact_of, parent, read_record
from apprentice.tasks.artifacts.store_files import sha256_of
from apprentice.tasks.artifacts.types import (
    KEY_LENGTH,
    LONGEST_NAME,
    NAME,
    Artifact,
    Checkpoint,
    artifact_type,
    kind_or_none,
    kinds,
)
from apprentice.tasks.reporting.errors import Stop

PATIENCE = 60.0
"""Seconds that the Hub may be away."""
SHORTEST = 6
"""Characters of a key, a revision or a tag that may do for it."""
KEY = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")
LISTED = 8
"""Candidates that are named where several fit."""


class Match(NamedTuple):
    """An artifact that fits a name."""

    artifact: Parent
    called: str
    """The key, tag or revision that fits."""


def locate(named: str, root: Path, hub: str | None = None) -> tuple[LocalStore, Parent]:
    """The artifact that a name fits, and its store. Raises Stop, with the nearest keys, where none or several fit.

    Args:
        named: A key, a revision, a tag, or the beginning of one; with `namespace/repository@` before it where several
            have the same.
        root: The store's folder.
        hub: The namespace on the Hub that is asked for what the folder does not have.
    """
    repository, _, name = named.rpartition("@")
    root = root.absolute()
    found = _only(name, named, _matches(root, hub, name, {repository} if repository else None))
    if found is None:
        raise _nothing(name, root, hub)
    return _store_of(found, root, hub), found


def checkpoint_named(store: LocalStore, named: str) -> Checkpoint | None:
    """The model of a store's own repositories that a name fits; None where there is none. Raises Stop for several."""
    own = {store.repository(kind): kind for kind in kinds() if issubclass(kind, Checkpoint)}
    repository, _, name = named.rpartition("@")
    if not re.fullmatch(NAME, name) or (repository and repository not in own):
        return None
    hub = store.namespace if isinstance(store, HubStore) and store.in_reach else None
    found = _only(name, named, _matches(store.root, hub, name, {repository} if repository else set(own)))
    if found is None:
        return None
    kind = own[found.repository]
    record = store.record(kind, found.key, found.revision)
    return artifact_of(kind, found.repository, found.revision, record)


def _matches(root: Path, hub: str | None, name: str, repositories: set[str] | None) -> list[Match]:
    """What fits in the folder, or, where nothing does, on the Hub; of some repositories, or of all."""
    if not re.fullmatch(NAME, name):
        raise Stop(
            f"{name!r} is no artifact's key, revision or tag: such a name has letters, digits, dots and dashes.",
            "Take one from the report's lineage, or from `apprentice runs`.",
        )
    found = [each for each in _in_folder(root, name) if not repositories or each.artifact.repository in repositories]
    return found or (_on_hub(root, hub, name, repositories) if hub else [])


def _only(name: str, named: str, matches: list[Match]) -> Parent | None:
    """The one artifact among those that fit: one that is called so before one whose name begins so. Raises Stop."""
    whole = [each for each in matches if each.called == name]
    fit = whole or (matches if len(name) >= SHORTEST else [])
    several = {(each.artifact.key, each.artifact.revision): each.artifact for each in fit}
    if len(several) > 1:
        named_so = [f"{each.repository}@{each.key} (revision {each.revision[:12]})" for each in several.values()]
        more = f" and {len(named_so) - LISTED} more" if len(named_so) > LISTED else ""
        raise Stop(
            f"Several artifacts are named {named}: {', '.join(named_so[:LISTED])}{more}.",
            "Write more of the name, or one of these whole: namespace/repository@key.",
        )
    return next(iter(several.values()), None)


def lines_of(store: LocalStore, artifact: Artifact, name: str, sha256: str) -> Iterator[bytes]:
    """The lines of one file, from the folder or, without the others, from the Hub. Raises Stop where it is changed.

    Args:
        sha256: As the artifact's record has it.
    """
    here = store.root / f"{artifact.repo_type}s" / artifact.repository / "snapshots" / artifact.revision / name
    if isinstance(store, HubStore) and not (here.exists() and sha256_of(here) == sha256):
        yield from _downloaded(store, artifact, name, sha256).splitlines()
        return
    with (store.fetch(artifact) / name).open("rb") as file:
        yield from file


def _downloaded(store: HubStore, artifact: Artifact, name: str, sha256: str) -> bytes:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RevisionNotFoundError

    for tag in (artifact.key, f"{artifact.key}-{artifact.revision[:12]}"):  # the latter where another has the key
        with TemporaryDirectory() as folder:
            where = {"repo_type": artifact.repo_type, "revision": tag, "local_dir": folder}
            download = partial(hf_hub_download, artifact.repository, name, **where)
            try:
                file = Path(ask(download, store.namespace, PATIENCE))
            except LocalEntryNotFoundError:  # the client's word for a Hub that is away
                raise
            except (EntryNotFoundError, RevisionNotFoundError):
                continue
            if sha256_of(file) == sha256:
                return file.read_bytes()
    raise Stop(f"{name} of {artifact.repository} is not what its record says.", "Somebody changed it on the Hub.")


def _in_folder(root: Path, name: str) -> Iterator[Match]:
    refs = {}
    for ref in sorted(root.glob("*s/*/*/refs/*")):
        if not ref.name.startswith(".") and ref.is_file():
            refs[ref] = ref.read_bytes()[:LONGEST_NAME].decode(errors="replace")
    fit = {(ref.parent.parent, revision, ref.name) for ref, revision in refs.items() if ref.name.startswith(name)}
    fit |= {(at.parent.parent, at.name, at.name) for at in root.glob(f"*s/*/*/snapshots/{glob.escape(name)}*")}
    for repository, revision, called in sorted(fit):
        try:
            record = read_record(repository / "snapshots" / revision) if re.fullmatch(NAME, revision) else None
        except (OSError, BadRecord):  # what is torn, or was meddled with, is no artifact
            continue
        if record is not None:
            by_name = artifact_type(repository.parts[-3].removesuffix("s"), repository.name)
            kind = record.kind or (by_name.__name__ if by_name else "")
            where = {"repository": f"{repository.parent.name}/{repository.name}", "revision": revision}
            yield Match(Parent(kind=kind, key=record.key, **where), called)


def _on_hub(root: Path, namespace: str, name: str, repositories: set[str] | None) -> list[Match]:
    """By tags, keys among them; by revisions, of which each is a request, where no tag fits."""
    from huggingface_hub import HfApi

    wait_until_hub_answers(PATIENCE)
    api = HfApi()
    stores: list[tuple[HubStore, type[Artifact]]] = []
    for repo_type, listing in (("model", api.list_models), ("dataset", api.list_datasets)):
        for repository in ask(lambda listing=listing: list(listing(author=namespace)), namespace, PATIENCE):
            kind = artifact_type(repo_type, repository.id)
            if kind is not None and (not repositories or repository.id in repositories):
                project = repository.id.removeprefix(f"{namespace}/").removesuffix(f"-{kind.suffix}")
                stores.append((HubStore(root, project, namespace, patience=PATIENCE), kind))
    found = [Match(parent(each.artifact), each.tag) for store, kind in stores for each in store.published(kind, name)]
    if not found and re.fullmatch("[0-9a-f]{6,40}", name):
        every = [parent(each.artifact) for store, kind in stores for each in store.published(kind)]
        found = [Match(each, each.revision) for each in every if each.revision.startswith(name)]
    return found


def _store_of(named: Parent, root: Path, hub: str | None) -> LocalStore:
    namespace, _, name = named.repository.partition("/")
    kind = kind_or_none(named.kind)
    if kind is None:
        raise Stop(f"{named.repository} holds {named.kind!r}, which this code does not know.", "Use the code it is of.")
    project = name.removesuffix(f"-{kind.suffix}")
    if namespace == hub:
        return HubStore(root, project, namespace, patience=PATIENCE)
    return LocalStore(root, project, namespace)


def _nothing(key: str, root: Path, hub: str | None) -> Stop:
    refs = {ref.name: ref.parent.parent.name for ref in root.glob("*s/*/*/refs/*") if KEY.fullmatch(ref.name)}
    near = difflib.get_close_matches(key, refs, n=3, cutoff=0.5)
    where = f"{root}, nor on the Hub under {hub}" if hub else str(root)
    nearest = f"The nearest there: {', '.join(f'{each} ({refs[each]})' for each in near)}. " if near else ""
    other = "HF_TOKEN must be set for private repositories" if hub else "--hub NAMESPACE looks on the Hub, too"
    empty = "" if refs else " No artifact is there at all."
    if len(key) < SHORTEST:
        return Stop(
            f"No artifact has the key or tag {key} in {where}.", f"Of a longer one the first {SHORTEST} may do."
        )
    return Stop(
        f"No artifact has the key, revision or tag {key} in {where}.{empty}",
        f"{nearest}--store names another folder; {other}.",
    )
