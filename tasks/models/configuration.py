"""What a model's configuration says: which class loads it, how many tokens it reads.

In: a configuration. Out: the class, tokens; Stop for a model that writes no text.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.tasks.reporting.errors import Stop

NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
UNBOUNDED = 2**20
"""For a model without positions, such as a state-space model."""


def context_length(config: Any) -> int:
    """Return the context length in tokens.

    Args:
        config: A transformers configuration, or its data.
    """
    if not isinstance(config, dict):
        config = config.get_text_config(decoder=True).to_dict()
    parts = [config, config.get("text_config") or {}]
    given = [part.get(name) for part in parts for name in NAMES]
    return next((each for each in given if isinstance(each, int) and each > 0), UNBOUNDED)


def question_too_long(tokens: int, model: str, longest: int) -> Stop:
    """What to say of a question that fills the model's context."""
    return Stop(
        f"A question takes {tokens} tokens, tools included, and {model} accepts at most {longest}.",
        "Make the questions shorter (environment.settings) or choose another student.",
    )


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


def forget_the_network(config: Path) -> None:
    """Removes transformers' note whether the Hub was offline, which would give one checkpoint two revisions."""
    kept = json.loads(config.read_text())
    kept.pop("local_files_only", None)
    config.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


RANDOM = ("dropout", "layerdrop", "jitter_noise")
"""In the names of a config's settings: some models drop out without a module for it."""


def is_random(trainer: Any) -> bool:
    """Whether a forward pass of training draws random numbers: for dropout, jitter of a router, or NEFTune's noise."""
    import torch

    model = trainer.model
    layers = (module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))
    named = (value for name, value in vars(model.config).items() if any(each in name for each in RANDOM))
    settings = (value for value in named if isinstance(value, float))
    return any(layers) or any(settings) or bool(trainer.args.neftune_noise_alpha)
