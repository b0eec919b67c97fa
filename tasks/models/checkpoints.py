"""Saves and loads checkpoints in fp32, with or without adapters.

In: a model and its tokenizer, or a checkpoint's folder. Out: safetensors and tokenizer files, or a model; Stop for
pickled weights or custom code that this run does not trust. LoRA and QLoRA train adapters beside frozen weights, which
are merged at the end. Of a model's own generation_config.json only where a turn ends is kept.
"""

import difflib
from pathlib import Path
from typing import Any

from apprentice.tasks.artifacts.foreign.models import (
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
from apprentice.tasks.models.configuration import auto_class, forget_the_network
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.training import LoraSpec, TrainerSpec

KEPT = {"bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "_from_model_config"}
KEPT |= {"transformers_version", "cache_implementation", "use_cache"}


def neutral(model: Any) -> Any:
    """Return the model with the tokens of its generation config alone."""
    from transformers import GenerationConfig

    config = getattr(model, "generation_config", None)
    if config is not None and set(config.to_diff_dict()) - KEPT:
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
    return reads_rows_at_once(neutral(model))


def reads_rows_at_once(model: Any) -> Any:
    """Return the model, whose head gets the last states of a batch without the gaps that cutting them leaves.

    Without gradients torch does not fold such a batch into one product: on a CPU it copies the head's weights for every
    row, 7 GB for 128 rows of a vocabulary of 49,152 and 576 features, at the first token of each generation.
    """
    if (head := model.get_output_embeddings()) is not None:
        head.register_forward_pre_hook(lambda _, states: tuple(each.contiguous() for each in states))
    return model


def save(
    model: Any, tokenizer: Any, to: Path, weights: dict[str, Any] | None = None, initial: Path | None = None
) -> dict[str, Any]:
    """Writes a checkpoint; returns the fields of its artifact.

    Args:
        weights: The full state dict of a sharded model.
        initial: The initial checkpoint of the training; it names the source of the model's custom code.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    if weights is not None:  # a gathered state dict has tied weights twice
        weights = {name: each for name, each in weights.items() if name not in model.all_tied_weights_keys}
    model.config.use_cache = True  # transformers' Trainer turns it off, for good
    model.save_pretrained(to, state_dict=weights)
    tokenizer.save_pretrained(to)
    forget_the_network(to / "tokenizer_config.json")
    source = initial and code_of(initial)
    if source and any(type(each).__module__.startswith("transformers_modules.") for each in (model, tokenizer)):
        name_code(to, source)
    else:
        forget_code(to)
    return {"parameters": model.num_parameters()}


def model_to_train(checkpoint: Path, spec: TrainerSpec, trusted: Trusted = ()) -> Any:
    """The checkpoint's model in fp32; for QLoRA with frozen weights in 4 bits."""
    import torch

    sparing: dict[str, Any] = {}
    if spec.lora is not None and spec.lora.quantized:
        from transformers import BitsAndBytesConfig

        bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16 if spec.bf16 else torch.float32,
        )
        sparing = {"quantization_config": bits, "device_map": torch.cuda.current_device()}
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


def check_adapter(model: Any, section: str, lora: LoraSpec) -> None:
    """Raises Stop where PEFT cannot add the adapters of a section to these layers, which may be on the meta device."""
    from peft import get_peft_model

    try:
        get_peft_model(model, _config(lora)).unload()
    except (ValueError, TypeError, RuntimeError) as error:
        said = one_line(str(error))[:300].rstrip(".")
        refused = Stop(f"{section}.lora: PEFT refuses it: {said}.", f"Change {section}.lora.targets.")
        raise broken_package(error) or refused from error


def layers_of(checkpoint: Path, trusted: Trusted = ()) -> Any:
    """A checkpoint's layers on the meta device. Raises Stop."""
    import torch
    from transformers import AutoConfig

    may_run = runs_code(checkpoint, trusted)
    with readable(checkpoint), torch.device("meta"):
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=may_run)
        return auto_class(config, str(checkpoint)).from_config(config, trust_remote_code=may_run)


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
