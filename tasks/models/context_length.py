"""How many tokens a model reads at once, whatever its configuration calls it.

In: a configuration, as an object or as config.json's data. Out: tokens. A composite model, such as one that also reads
pictures, has the sizes of its language model under `text_config`.
"""

from typing import Any

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
