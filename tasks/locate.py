"""Finds an artifact that nothing but its key names, and one file of it.

In: a key or a unique beginning of one, and where artifacts lie: a folder, the Hub with that folder in front. Out: the
store in which the artifact is, and its whole name. A key says neither project nor kind, so every repository is asked.
"""

import difflib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from apprentice.tasks.artifacts import KEY_LENGTH, Artifact, kind_named
from apprentice.tasks.errors import Stop
from apprentice.tasks.hub import HubStore
from apprentice.tasks.hub_client import ask, wait_until_hub_answers
from apprentice.tasks.provenance import RECORD, ArtifactRecord, Parent
from apprentice.tasks.store import LocalStore, sha256_of

PATIENCE = 60.0
"""Seconds that the Hub may be away."""
SHORTEST = 6
"""Characters of a key that may do for it."""
KEY = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")


def locate(named: str, root: Path, hub: str | None = None) -> tuple[LocalStore, Parent]:
    """The artifact of a key, and its store. Raises Stop, with the nearest keys, where there is none or several.

    Args:
        named: A key, or its beginning; with `namespace/repository@` before it where several have the same.
        root: The store's folder.
        hub: The namespace on the Hub that is asked for what the folder does not have.
    """
    repository, _, key = named.rpartition("@")
    if not re.fullmatch(f"[0-9a-f]{{{SHORTEST},{KEY_LENGTH}}}", key):
        raise Stop(
            f"{key!r} is no artifact's key: that is {KEY_LENGTH} hex digits, of which the first {SHORTEST} may do.",
            "Take one from the lines of `apprentice run` (kept as …) or from the report's lineage.",
        )
    root = root.absolute()
    found = list(_in_folder(root, key)) or (list(_on_hub(root, hub, key)) if hub else [])
    several = {(each.key, each.revision): each for each in found if repository in ("", each.repository)}
    if not several:
        raise _nothing(key, root, hub)
    if len(several) > 1:
        names = ", ".join(f"{each.repository}@{each.key}" for each in several.values())
        raise Stop(f"Several artifacts are named {key}: {names}.", "Write one of these names whole.")
    one = next(iter(several.values()))
    return _store_of(one, root, hub), one


def kinds() -> list[type[Artifact]]:
    """Every kind that has repositories."""
    found, waiting = [], [Artifact]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found += [kind] if "suffix" in vars(kind) else []
    return found


def kind_or_none(name: str) -> type[Artifact] | None:
    """The kind of that name, if it is one that has repositories."""
    try:
        kind = kind_named(name)
    except KeyError:
        return None
    return kind if kind in kinds() else None


def kind_of(repo_type: str, repository: str) -> type[Artifact] | None:
    """The kind whose repositories are named like this one: `-kept-rollouts` before `-rollouts`."""
    fit = [kind for kind in kinds() if kind.repo_type == repo_type and repository.endswith(f"-{kind.suffix}")]
    return max(fit, key=lambda kind: len(kind.suffix), default=None)


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

            def download(tag: str = tag, folder: str = folder) -> str:
                return hf_hub_download(
                    artifact.repository, name, repo_type=artifact.repo_type, revision=tag, local_dir=folder
                )

            try:
                got = Path(ask(download, store.namespace, PATIENCE)).read_bytes()
            except LocalEntryNotFoundError:  # the client's word for a Hub that is away
                raise
            except (EntryNotFoundError, RevisionNotFoundError):
                continue
        if hashlib.sha256(got).hexdigest() == sha256:
            return got
    raise Stop(f"{name} of {artifact.repository} is not what its record says.", "Somebody changed it on the Hub.")


def _in_folder(root: Path, key: str) -> Iterator[Parent]:
    for ref in sorted(root.glob(f"*s/*/*/refs/{key}*")):
        repository = ref.parent.parent
        record = repository / "snapshots" / ref.read_text() / RECORD
        if KEY.fullmatch(ref.name) and record.exists():
            kind = ArtifactRecord.model_validate_json(record.read_bytes()).kind
            kind = kind or _name(kind_of(repository.parts[-3].removesuffix("s"), repository.name))
            name = f"{repository.parent.name}/{repository.name}"
            yield Parent(kind=kind, repository=name, revision=ref.read_text(), key=ref.name)


def _on_hub(root: Path, namespace: str, key: str) -> Iterator[Parent]:
    from huggingface_hub import HfApi

    wait_until_hub_answers(PATIENCE)
    api = HfApi()
    for repo_type, listing in (("model", api.list_models), ("dataset", api.list_datasets)):
        for repository in ask(lambda listing=listing: list(listing(author=namespace)), namespace, PATIENCE):
            kind = kind_of(repo_type, repository.id)
            if kind is None:
                continue
            project = repository.id.removeprefix(f"{namespace}/").removesuffix(f"-{kind.suffix}")
            store = HubStore(root, project, namespace, patience=PATIENCE)
            for tag, revision in store.tags(kind, key).items():
                if KEY.fullmatch(tag):
                    name = store.record(kind, tag, revision).kind or _name(kind)
                    yield Parent(kind=name, repository=repository.id, revision=revision, key=tag)


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
    said = f"The nearest there: {', '.join(f'{each} ({refs[each]})' for each in near)}. " if near else ""
    other = "HF_TOKEN must be set for private repositories" if hub else "--hub NAMESPACE looks on the Hub, too"
    empty = "" if refs else " No artifact is there at all."
    return Stop(f"No artifact has the key {key} in {where}.{empty}", f"{said}--store names another folder; {other}.")


def _name(kind: type[Artifact] | None) -> str:
    return kind.__name__ if kind else ""
