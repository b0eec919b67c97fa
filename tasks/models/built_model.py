"""A small Qwen3 built from a seed.

In: the sizes, the tokenizer, the seed. Out: the model, with random or pretrained weights.
"""

from typing import Any

from apprentice.tasks.models.pretraining import pretrain
from apprentice.tasks.settings.stages import BuiltStudent


def built_model(spec: BuiltStudent, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 of these sizes with seeded random weights, pretrained where the settings say so."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.hidden_size // spec.heads,
        max_position_embeddings=spec.max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=spec.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    if spec.pretraining_steps:
        pretrain(model, tokenizer, spec.pretraining_steps, seed)
    return model
