"""LoRA and QLoRA: trains small adapters beside frozen weights and merges them at the end.

In: a checkpoint and `LoraSpec`. Out: the model to train, TRL's `peft_config`, and after training the merged model in
fp32, so that later stages need no adapters.
Adapters are merged into newly loaded fp32 weights: under QLoRA the weights in memory are rounded to 4 bits.
https://arxiv.org/abs/2106.09685, https://arxiv.org/abs/2305.14314
"""

import difflib
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign import Trusted
from apprentice.tasks.models.checkpoints import load_model
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.settings.trl_arguments import LoraSpec


def model_to_train(checkpoint: Path, spec: TrainerSpec, trusted: Trusted = ()) -> Any:
    """The checkpoint's model in fp32; for QLoRA with frozen weights in 4 bits."""
    import torch

    sparing: dict[str, Any] = {}
    if spec.lora is not None and spec.lora.quantized:
        sparing = {"quantization_config": _four_bits(spec.bf16), "device_map": torch.cuda.current_device()}
    model = load_model(checkpoint, trusted, **sparing)
    if spec.lora is not None:
        check_targets(model, spec.lora)
    return model


def check_targets(model: Any, lora: LoraSpec) -> None:
    """Raises Stop for a target that no layer has, and for an embedding whose weights the output layer shares.

    Args:
        model: Its weights are not looked at; they may be on the meta device.
    """
    if isinstance(lora.targets, str):
        return
    modules = dict(model.named_modules())
    embedding = model.get_input_embeddings()
    for target in lora.targets:
        found = [each for name, each in modules.items() if name == target or name.endswith(f".{target}")]
        if not found:
            ends = sorted({name.rpartition(".")[2] for name in modules if hasattr(modules[name], "weight")})
            near = difflib.get_close_matches(target, ends, n=1)
            raise Stop(
                f"lora.targets: the model has no layer {target!r}.",
                f"Did you mean {near[0]!r}?" if near else f"Its layers: {', '.join(ends)}.",
            )
        if embedding in found and model.config.get_text_config(decoder=True).tie_word_embeddings:
            raise Stop(
                f"lora.targets: {target!r} is also the output layer of this model (tie_word_embeddings), which an "
                "adapter would change in training and not in the published weights.",
                f"Leave {target!r} out of lora.targets, or train all weights.",
            )


def adapter_arguments(lora: LoraSpec | None) -> dict[str, Any]:
    return {} if lora is None else {"peft_config": _config(lora)}


def merged(
    model: Any, checkpoint: Path, lora: LoraSpec, weights: dict[str, Any] | None = None, trusted: Trusted = ()
) -> Any:
    """The trained model with merged weights in fp32.

    Args:
        checkpoint: The initial checkpoint.
        weights: The full state dict of a sharded model.
    """
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    whole = get_peft_model(load_model(checkpoint, trusted), _config(lora))
    learned = get_peft_model_state_dict(model, state_dict=weights)
    unknown = set_peft_model_state_dict(whole, learned).unexpected_keys
    assert not unknown, f"adapters without a layer: {unknown}"
    return whole.merge_and_unload()


def _config(lora: LoraSpec) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )


def _four_bits(bf16: bool) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if bf16 else torch.float32,
    )
