"""What a model's own generation_config.json may decide: where a turn ends, and nothing else.

In: a loaded model, its tokenizer. Out: the same model. Its other settings (beams, a repetition penalty, a minimum of
tokens, a temperature) would reach evaluation and GRPO wherever the recipe leaves a setting out, and some of them
transformers refuses to save again. https://huggingface.co/docs/transformers/main_classes/text_generation
"""

from typing import Any

KEPT = {"bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "_from_model_config"}
KEPT |= {"transformers_version", "cache_implementation", "use_cache"}


def set_by(config: Any) -> list[str]:
    """Return the names of the settings that a generation config has beside the tokens."""
    return sorted(set(config.to_diff_dict()) - KEPT)


def neutral(model: Any) -> Any:
    """Return the model with the tokens of its generation config alone."""
    from transformers import GenerationConfig

    config = getattr(model, "generation_config", None)
    if config is not None and set_by(config):
        known = config.to_dict()
        tokens = {name: known[name] for name in KEPT if name.endswith("_token_id") and known.get(name) is not None}
        model.generation_config = GenerationConfig(**tokens)
    return model


def ending_at(model: Any, ends: tuple[int, ...]) -> Any:
    """Return the model, which ends a completion at every token that ends an assistant's turn; TRL and servers know
    only the tokenizer's."""
    if len(ends) > 1:
        known = model.generation_config.eos_token_id
        known = known if isinstance(known, list) else [known] * (known is not None)
        model.generation_config.eos_token_id = list(dict.fromkeys([*ends, *known]))
    return model
