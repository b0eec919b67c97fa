"""Which model a student is: a folder by its content, a model of the Hub by its commit.

In: `StudentSpec` as the recipe has it. Out: the same, pinned: what enters the key is what will be loaded.
https://huggingface.co/docs/huggingface_hub/guides/download
"""

import hashlib
import re
import shutil
from pathlib import Path

from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.local import sha256_of
from apprentice.tasks.artifacts.trust import PATIENCE, is_repository
from apprentice.tasks.episodes.learned import LEARNED
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import StudentSpec

READ = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", "*processor_config.json", "adapter_config.json", LEARNED),
)
"""The files of a folder that loading reads, and our own list of what the model learned from."""
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
COMMIT = re.compile("[0-9a-f]{40}")
_seen: dict[tuple[str, int, int, int], str] = {}
"""The SHA-256 of files that this process has read: by path, inode, size, time of the last change."""


def pinned(spec: StudentSpec) -> StudentSpec:
    """The student by its content or its commit. Raises Stop where there is no such one."""
    if spec.model is None:
        return spec
    folder = Path(spec.model).expanduser()
    if folder.is_dir():
        return _as_folder(spec, folder.absolute())
    if spec.content is not None or not is_repository(spec.model):
        raise Stop(
            f"There is no folder {folder.absolute()}, from which the student is to begin.", "Check student.model."
        )
    assert spec.revision is not None
    if COMMIT.fullmatch(spec.revision):
        return spec
    return spec.model_copy(update={"revision": _commit_of(spec.model, spec.revision)})


def files_of(folder: Path, spec: StudentSpec) -> list[Path]:
    """What loading a folder reads, as the recipe trusts it."""
    patterns = (*READ, *(["*.py"] if spec.trust_remote_code else []), *([] if spec.safetensors_only else PICKLED))
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def copy_of(spec: StudentSpec, to: Path) -> None:
    """Copies what loading reads. Raises Stop where the folder is not what was pinned any more."""
    assert spec.model is not None
    for file in files_of(Path(spec.model), spec):
        shutil.copyfile(file, to / file.name)
    if _content(to, spec) != spec.content:
        raise Stop(f"{spec.model} changed while it was read.", "Run again when nobody writes there.")


def _as_folder(spec: StudentSpec, folder: Path) -> StudentSpec:
    if spec.revision is not None:
        raise Stop(
            f"{folder} is a folder: it is known by its content and has no revision.", "Leave student.revision out."
        )
    if not files_of(folder, spec):
        raise Stop(f"{folder} holds no model.", "Check student.model.")
    content = _content(folder, spec)
    if spec.content not in (None, content):
        raise Stop(
            f"{folder} has the content {content[:12]}, and {spec.content[:12]} is asked for.",  # type: ignore[index]
            "Leave student.content out where the folder as it is now is meant.",
        )
    return spec.model_copy(update={"model": str(folder), "content": content})


def _content(folder: Path, spec: StudentSpec) -> str:
    """40 hex digits over names and contents of the files that loading reads."""
    lines = (f"{file.name}\0{_hash(file)}\n" for file in files_of(folder, spec))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:40]


def _hash(file: Path) -> str:
    now = file.stat()
    state = (str(file), now.st_ino, now.st_size, now.st_mtime_ns)
    if state not in _seen:
        _seen[state] = sha256_of(file)
    return _seen[state]


def _commit_of(model: str, revision: str) -> str:
    """The commit that a branch or a tag is at: now, or, offline, when it was last asked for."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        kept = try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(kept, str):
            raise Stop(f"{model} at {revision} is not on this machine, and HF_HUB_OFFLINE is set.", "Unset it.")
        return Path(kept).parent.name
    try:
        found = ask(lambda: HfApi().model_info(model, revision=revision), model.partition("/")[0], PATIENCE)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise Stop(
            f"The Hub has no model {model} at {revision}, or shows it to nobody without the right.",
            "Check student.model and student.revision; for a private or gated one set HF_TOKEN.",
        ) from None
    assert found.sha is not None
    return found.sha
