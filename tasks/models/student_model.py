"""A student from an existing model: a reference to a Hub model, or a copy of a local folder.

In: a pinned `StudentSpec`. Out: configuration and prepared tokenizer; for a folder also the weights, because its files
may change later.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign import (
    WEIGHTS,
    brings_code,
    check_files,
    forget_code,
    name_code,
    readable,
    source_of,
)
from apprentice.tasks.models.chat_template import prepared
from apprentice.tasks.models.student_source import NAMED_TEMPLATES, copy_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import StudentSpec


def from_model(spec: StudentSpec, out: Path) -> int:
    """Writes the student to `out`; returns its number of parameters.

    Raises Stop for a model whose custom code the recipe does not trust.
    """
    if spec.content:
        copy_of(spec, out)
    config, tokenizer = named_model(spec, out if spec.content else None)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    shutil.rmtree(out / NAMED_TEMPLATES, ignore_errors=True)  # the one that renders tools was chosen
    forget_the_network(out / "tokenizer_config.json")
    if not spec.content:
        named = {"model": spec.model, "revision": spec.revision, "safetensors_only": spec.safetensors_only}
        (out / WEIGHTS).write_text(json.dumps(named))
    elif not spec.safetensors_only:
        _without_pickles(out, spec)
    if spec.trust_remote_code and brings_code(out):
        name_code(out, source_of(spec))
    else:
        forget_code(out)
    layers = without_weights(config, spec)
    check_rows(layers, tokenizer, str(spec.model))
    return layers.num_parameters()


def check_rows(model: Any, tokenizer: Any, called: str) -> None:
    """Raises Stop for a tokenizer whose texts have tokens that the model has no embedding for.

    A token that was added and that no text of the template holds does no harm.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    shown = (ident for text, ident in tokenizer.get_added_vocab().items() if text in str(tokenizer.chat_template))
    needed = 1 + max(tokenizer.vocab_size - 1, *(each for each in ends if each is not None), *shown)
    if rows < needed:
        raise Stop(
            f"{called} has {rows} embedding rows, and its tokenizer {needed} tokens.",
            "Add rows (model.resize_token_embeddings(len(tokenizer))), save the model, and name that folder in "
            "student.model.",
        )


def without_weights(config: Any, spec: StudentSpec) -> Any:
    """The model on the meta device: its layers without memory for their weights. Raises Stop."""
    import torch

    with torch.device("meta"):
        return auto_class(config, str(spec.model)).from_config(config, trust_remote_code=spec.trust_remote_code)


def auto_class(config: Any, called: str) -> Any:
    """The class of transformers that loads a model for text; one that also reads pictures may have no other.

    Raises Stop for a model that writes no text.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    if getattr(config, "auto_map", None) or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    raise Stop(
        f"{called} is a {config.model_type} model, which transformers cannot train to write text.",
        "Choose a model for chat with tools (student.model).",
    )


def named_model(spec: StudentSpec, copied: Path | None = None) -> tuple[Any, Any]:
    """The configuration and the prepared tokenizer.

    Raises Stop when the model does not exist, needs custom code that the recipe does not trust, or has a chat template
    that cannot be trained on.

    Args:
        copied: The copy of a local folder.
    """
    from transformers import AutoConfig, AutoTokenizer

    assert spec.model is not None
    _check_weights(spec)
    where: Any = {"trust_remote_code": spec.trust_remote_code}
    if spec.content:
        check_files(copied or Path(spec.model), spec.model)
    else:
        where["revision"] = spec.revision
    with readable(spec.model), _code_refused(spec):
        config = AutoConfig.from_pretrained(copied or spec.model, **where)
        tokenizer = AutoTokenizer.from_pretrained(copied or spec.model, **where)
    return config, prepared(tokenizer, spec.model)


def forget_the_network(config: Path) -> None:
    """Removes transformers' note whether the Hub was offline, which would give one checkpoint two revisions."""
    kept = json.loads(config.read_text())
    kept.pop("local_files_only", None)
    config.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def _without_pickles(out: Path, spec: StudentSpec) -> None:
    from transformers import AutoConfig

    pickled = [*out.glob("pytorch_model*.bin"), *out.glob("pytorch_model.bin.index.json")]
    if pickled:
        with readable(out):
            where: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
            model = auto_class(AutoConfig.from_pretrained(out, **where), str(spec.model)).from_pretrained(
                out, dtype="auto", **where
            )
            model.save_pretrained(out)
    for file in pickled:
        file.unlink()


def _check_weights(spec: StudentSpec) -> None:
    from huggingface_hub import constants, list_repo_files

    assert spec.model is not None
    folder = Path(spec.model)
    if not spec.content and constants.HF_HUB_OFFLINE:
        return  # offline, loading checks the cached files
    local = [file.name for file in folder.iterdir()] if spec.content else None
    files = local or list_repo_files(spec.model, revision=spec.revision)
    if spec.safetensors_only and not any(name.endswith(".safetensors") for name in files):
        raise Stop(
            f"{spec.model} has no weights in safetensors; loading pickled ones can run code.",
            "Choose a revision that has them, or set student.safetensors_only: false if you trust its author.",
        )


@contextmanager
def _code_refused(spec: StudentSpec) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise Stop(
            f"{source_of(spec)} needs Python code of its own repository.",
            "Read that code, then set student.trust_remote_code: true (or --trust-code); or choose a model that "
            "transformers supports.",
        ) from None
