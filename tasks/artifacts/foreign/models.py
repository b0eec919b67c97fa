"""Weights of strangers, which may bring code: whose Python code and whose pickled weights a run may load.

In: a recipe's trusted sources, a checkpoint. Out: whether it may be loaded, and with which code. Raises Stop.
"""

import filecmp
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.tasks.artifacts.hub_client import ask, is_away
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import StudentSpec
from apprentice.tasks.settings.trackers import hub_name_fault

CODE = "code.json"
"""Of a checkpoint with Python code of its own: whose that is."""
WEIGHTS = "source.json"
"""Of a checkpoint without weights: the model of the Hub that has them."""
PATIENCE = 60.0
"""Seconds that the Hub may be away."""
Trusted = Sequence[StudentSpec]


class ModelSource(NamedTuple):
    """A model at one revision."""

    model: str | None
    """A repository of the Hub; None for a folder, which is known by its content."""
    revision: str

    def __str__(self) -> str:
        return f"{self.model}@{self.revision}" if self.model else f"a folder with the content {self.revision[:12]}"


def source_of(spec: StudentSpec) -> ModelSource:
    """The model that a recipe names; its revision is its commit once it was pinned, see student_model.py."""
    return ModelSource(None, spec.content) if spec.content else ModelSource(spec.model, spec.revision or "")


def grant(source: ModelSource | None, trusted: Trusted) -> StudentSpec | None:
    """What this run trusts a model with."""
    return next((each for each in trusted if source_of(each) == source), None)


def code_of(checkpoint: Path) -> ModelSource | None:
    """The owner of a checkpoint's Python code, by its own record; None if it names none."""
    return _named(checkpoint / CODE)


def name_code(checkpoint: Path, source: ModelSource) -> None:
    """Writes the owner of the code in a checkpoint that is being made."""
    (checkpoint / CODE).write_text(json.dumps(source._asdict()) + "\n")


def brings_code(checkpoint: Path) -> bool:
    """Whether the configurations in a checkpoint want classes from Python files."""
    return any(True for _ in _references(checkpoint))


def forget_code(checkpoint: Path) -> None:
    """Takes out what would have transformers look for code: the model was loaded without any."""
    for file in checkpoint.glob("*config.json"):
        config = json.loads(file.read_text())
        if config.pop("auto_map", None) is not None:
            file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def runs_code(checkpoint: Path, trusted: Trusted) -> bool:
    """Whether loading a checkpoint runs Python code from its folder. Raises Stop if this run does not trust the code's
    owner, or if the code differs from the owner's."""
    references = list(_references(checkpoint))
    if not references:
        return False
    source = code_of(checkpoint)
    spec = grant(source, trusted)
    if source is None or spec is None or not spec.trust_remote_code:
        raise Stop(
            f"The model in {checkpoint} brings Python code of {source or 'nobody whom it names'}, which this run does "
            "not trust.",
            "Read that code, then name that model with student.trust_remote_code: true, or with --trust-code.",
        )
    if any("--" in reference for reference in references) or not _is_the_same(checkpoint, spec):
        raise Stop(
            f"The Python code in {checkpoint} is not that of {source}, as it says.",
            "Do not use this model: somebody changed it.",
        )
    return True


def weights_elsewhere(checkpoint: Path) -> ModelSource | None:
    """The model of the Hub that has a checkpoint's weights; None if the checkpoint has them. Raises Stop."""
    if not (checkpoint / WEIGHTS).exists():
        return None
    source = _named(checkpoint / WEIGHTS)
    if source is None or source.model is None or not is_repository(source.model) or Path(source.model).exists():
        raise Stop(
            f"{checkpoint / WEIGHTS} names no model of the Hub at a revision.",
            "Run the recipe again: the student is made anew.",
        )
    return source


def is_repository(name: str) -> bool:
    """Whether a name can be that of a repository on the Hub."""
    return not hub_name_fault(name)


def check_files(checkpoint: Path, called: str = "") -> None:
    """Raises Stop for a checkpoint with which transformers would load something from elsewhere.

    Args:
        called: What the recipe calls it, if this is a copy.
    """
    if (checkpoint / "adapter_config.json").exists():
        raise Stop(
            f"{called or checkpoint} holds an adapter of another model (adapter_config.json).",
            "Merge the two (PEFT's merge_and_unload), save the whole model and its tokenizer, and name that folder "
            "in student.model.",
        )
    config = _json(checkpoint / "config.json") or {}
    for name in ("attn_implementation", "_attn_implementation", "experts_implementation"):
        if "/" in str(config.get(name) or ""):
            raise Stop(
                f"The configuration in {checkpoint} asks for code of the Hub ({name}).", f"Take {name} out of it."
            )
    index = _json(checkpoint / "model.safetensors.index.json") or {}
    shards = index.get("weight_map", {})
    if not isinstance(shards, dict) or any(not isinstance(s, str) or Path(s).name != s for s in shards.values()):
        raise Stop(f"The weights of {checkpoint} are listed outside of it.", "Do not use this model.")


@contextmanager
def readable(what: object) -> Iterator[None]:
    """Says in words that a model or a tokenizer cannot be loaded."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, SafetensorError) as error:
        if is_away(error):
            raise
        cause = " ".join(str(error).split())[:200]
        needs = "Install what it needs, or name another model."
        raise broken_package(error) or Stop(
            f"{what} cannot be loaded: {type(error).__name__}: {cause}",
            needs if isinstance(error, ImportError) else "Name another model, or make it anew.",
        ) from error
    except RuntimeError as error:  # libraries make it of a failed import; others, such as too little memory, go on
        if stop := broken_package(error):
            raise stop from error
        raise


def _references(checkpoint: Path) -> Iterator[str]:
    for file in sorted(checkpoint.glob("*config.json")):
        yield from _strings((_json(file) or {}).get("auto_map"))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif value is not None:
        yield str(value)


def _is_the_same(checkpoint: Path, spec: StudentSpec) -> bool:
    """Whether each Python file of a checkpoint is, byte for byte, that of the model that is trusted."""
    there = _code_at(spec)
    files = [file.relative_to(checkpoint) for file in checkpoint.rglob("*.py")]
    return all(
        (there / each).is_file() and filecmp.cmp(checkpoint / each, there / each, shallow=False) for each in files
    )


def _code_at(spec: StudentSpec) -> Path:
    from huggingface_hub import snapshot_download

    assert spec.model is not None
    if spec.content:
        return Path(spec.model)
    download = partial(snapshot_download, spec.model, revision=spec.revision, allow_patterns="*.py")
    return Path(ask(lambda: str(download()), spec.model.partition("/")[0], PATIENCE))


def _named(file: Path) -> ModelSource | None:
    found = _json(file) or {}
    model, revision = found.get("model"), found.get("revision")
    if not isinstance(revision, str) or not revision or not isinstance(model, str | None):
        return None
    return ModelSource(model, revision)


def _json(file: Path) -> dict[str, Any] | None:
    """The mapping in a file; None where there is none: whoever loads it says so."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
