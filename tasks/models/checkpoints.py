"""Saves and loads checkpoints in fp32.

In: a model and its tokenizer, or a checkpoint's folder. Out: safetensors and tokenizer files, or a model; Stop for
pickled weights or custom code that this run does not trust.
"""

from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign import (
    Trusted,
    check_files,
    code_of,
    forget_code,
    grant,
    name_code,
    readable,
    runs_code,
    weights_elsewhere,
)
from apprentice.tasks.models.generation_config import neutral
from apprentice.tasks.models.student_model import auto_class, forget_the_network


def load_model(checkpoint: Path, trusted: Trusted = (), **how: Any) -> Any:
    """Loads a checkpoint's model in fp32, because bf16 weights do not move at a learning rate of 2e-5. Of its
    generation config only the tokens remain.

    `how` is passed to transformers. Raises Stop, also for custom code and pickled weights that this run does not trust.
    """
    import torch
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # the run shows its own
    check_files(checkpoint)
    source = weights_elsewhere(checkpoint)
    given = grant(source, trusted)
    where: dict[str, Any] = {"trust_remote_code": given is not None and given.trust_remote_code}
    where |= {"revision": source.revision} if source else {"trust_remote_code": runs_code(checkpoint, trusted)}
    with readable(source or checkpoint):
        named = source.model or "" if source else checkpoint
        model = auto_class(AutoConfig.from_pretrained(named, **where), str(named)).from_pretrained(
            named,
            use_safetensors=None if given is not None and not given.safetensors_only else True,
            dtype=torch.float32,
            **where,
            **how,
        )
    return neutral(model)


def save(
    model: Any, tokenizer: Any, to: Path, weights: dict[str, Any] | None = None, begun: Path | None = None
) -> dict[str, Any]:
    """Writes a checkpoint; returns the fields of its artifact.

    Args:
        weights: The full state dict of a sharded model.
        begun: The initial checkpoint of the training; it names the source of the model's custom code.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    if weights is not None:  # a gathered state dict has tied weights twice
        weights = {name: each for name, each in weights.items() if name not in model.all_tied_weights_keys}
    model.save_pretrained(to, state_dict=weights)
    tokenizer.save_pretrained(to)
    forget_the_network(to / "tokenizer_config.json")
    source = begun and code_of(begun)
    if source and any(type(each).__module__.startswith("transformers_modules.") for each in (model, tokenizer)):
        name_code(to, source)
    else:
        forget_code(to)
    return {"parameters": model.num_parameters()}
