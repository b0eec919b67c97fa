"""Pins a student: a folder by the digest of its content, a Hub model by its commit.

In: the recipe's `StudentSpec`. Out: the same, pinned, so that the key names exactly what is loaded.
https://huggingface.co/docs/huggingface_hub/guides/download
"""

import re
import shutil
from pathlib import Path

from apprentice.tasks.artifacts.foreign import PATIENCE, is_repository
from apprentice.tasks.artifacts.hub_client import ask
from apprentice.tasks.artifacts.local import digest_of, known_sha256_of
from apprentice.tasks.episodes.jsonl import LEARNED
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import StudentSpec

NAMED_TEMPLATES = "additional_chat_templates"
"""Folder in which transformers saves a tokenizer's further chat templates."""
READ = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken"),
    *("chat_template*", f"{NAMED_TEMPLATES}/*.jinja", "*processor_config.json", "adapter_config.json", LEARNED),
)
"""The files of a folder that loading reads, and learned.jsonl."""
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
COMMIT = re.compile("[0-9a-f]{40}")


def pinned(spec: StudentSpec) -> StudentSpec:
    """The student, pinned by content or commit. Raises Stop when it does not exist."""
    if spec.model is None:
        return spec
    folder = Path(spec.model).expanduser()
    if folder.is_dir():
        return _as_folder(spec, folder.absolute())
    if spec.content is not None or not is_repository(spec.model):
        raise Stop(f"There is no folder {folder.absolute()} to load the student from.", "Check student.model.")
    assert spec.revision is not None
    if COMMIT.fullmatch(spec.revision):
        return spec
    return spec.model_copy(update={"revision": _commit_of(spec.model, spec.revision)})


def files_of(folder: Path, spec: StudentSpec) -> list[Path]:
    """The files that loading a folder reads, given what the recipe trusts."""
    patterns = (*READ, *(["*.py"] if spec.trust_remote_code else []), *([] if spec.safetensors_only else PICKLED))
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def copy_of(spec: StudentSpec, to: Path) -> None:
    """Copies the files that loading reads. Raises Stop when the folder no longer matches the pinned content."""
    assert spec.model is not None
    for file in files_of(Path(spec.model), spec):
        target = to / file.relative_to(spec.model)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    if _content(to, spec) != spec.content:
        raise Stop(f"{spec.model} changed while it was read.", "Run again when nothing writes to it.")


def _as_folder(spec: StudentSpec, folder: Path) -> StudentSpec:
    if spec.revision is not None:
        raise Stop(
            f"{folder} is a folder, which is pinned by its content and has no revision.", "Remove student.revision."
        )
    if not files_of(folder, spec):
        raise Stop(f"{folder} contains no model.", "Check student.model.")
    content = _content(folder, spec)
    if spec.content not in (None, content):
        raise Stop(
            f"{folder} has the content {content[:12]}, not {spec.content[:12]}.",  # type: ignore[index]
            "Remove student.content to use the folder as it is now.",
        )
    return spec.model_copy(update={"model": str(folder), "content": content})


def _content(folder: Path, spec: StudentSpec) -> str:
    return digest_of({file.relative_to(folder).as_posix(): known_sha256_of(file) for file in files_of(folder, spec)})


def _commit_of(model: str, revision: str) -> str:
    """The commit that a branch or tag points to; offline, the commit of the last download."""
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
            f"The Hub has no model {model} at {revision}, or it needs permission.",
            "Check student.model and student.revision; for a private or gated model set HF_TOKEN.",
        ) from None
    assert found.sha is not None
    return found.sha
