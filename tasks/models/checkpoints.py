"""Saves and loads the weights of a checkpoint, in fp32.

In: a model and its tokenizer, or a checkpoint's folder. Out: safetensors beside the tokenizer, or a model; Stop where
weights are pickled or need code that nobody trusts.
"""

from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.trust import (
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
from apprentice.tasks.models.student_model import forget_the_network


def load_model(checkpoint: Path, trusted: Trusted = (), **how: Any) -> Any:
    """The weights of a checkpoint of ours in fp32: where the optimizer steps, bf16 weights at lr 2e-5 do not move.

    `how` is passed on to transformers. Raises Stop, also for code and for pickled weights that this run does not trust.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the run has bars of its own
    check_files(checkpoint)
    source = weights_elsewhere(checkpoint)
    given = grant(source, trusted)
    where: dict[str, Any] = {"trust_remote_code": given is not None and given.trust_remote_code}
    where |= {"revision": source.revision} if source else {"trust_remote_code": runs_code(checkpoint, trusted)}
    with readable(source or checkpoint):
        return AutoModelForCausalLM.from_pretrained(
            source.model or "" if source else checkpoint,
            use_safetensors=None if given is not None and not given.safetensors_only else True,
            dtype=torch.float32,
            **where,
            **how,
        )


def save(
    model: Any, tokenizer: Any, to: Path, weights: dict[str, Any] | None = None, begun: Path | None = None
) -> dict[str, Any]:
    """Writes a checkpoint; returns what its artifact counts.

    Args:
        weights: The whole ones, of a model that is sharded.
        begun: The checkpoint from which it was trained: it names whose code the model has.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(to, state_dict=weights)
    tokenizer.save_pretrained(to)
    forget_the_network(to / "tokenizer_config.json")
    source = begun and code_of(begun)
    if source and any(type(each).__module__.startswith("transformers_modules.") for each in (model, tokenizer)):
        name_code(to, source)
    else:
        forget_code(to)
    return {"parameters": model.num_parameters()}
