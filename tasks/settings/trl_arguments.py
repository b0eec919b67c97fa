"""Checks the further TRL arguments of a recipe: `sft.args` for SFTConfig and `grpo.args` for GRPOConfig.

In: names and values. Out: the same, checked against TRL's config class; an argument that has a recipe field is rejected
with that field's name. TRL takes seconds to import, so it is imported only for recipes with such arguments.
"""

import dataclasses
import difflib
import inspect
import json
import re
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from apprentice.tasks.reporting.errors import Stop

CONFIGS = {"sft": "SFTConfig", "grpo": "GRPOConfig"}
"""TRL's config class for each recipe section."""
ITSELF = ""
"""For an argument that has no recipe field because other fields determine it."""

_SHARED = {
    "per_device_train_batch_size": "{section}.batch_size",
    "gradient_accumulation_steps": "{section}.gradient_accumulation",
    "lr_scheduler_type": "{section}.scheduler",
    **{name: f"{{section}}.{name}" for name in ("learning_rate", "warmup_steps", "adam_epsilon", "adam_beta2", "bf16")},
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing"), "{section}.gradient_checkpointing"),
    "use_liger_kernel": "{section}.liger",
    "logging_steps": "{section}.logging_steps",
    "save_steps": "{section}.checkpoint_steps",
    **dict.fromkeys(
        ("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "accelerator_config"), "{section}.accelerate_config"
    ),
    "seed": "seed",
    "project": "name",
    "report_to": "report_to",
    "trackio_space_id": "trackio.space_id",
    "hub_private_repo": "trackio.private",
    "output_dir": "store.path",
    **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_token", "hub_strategy", "hub_revision"), "store.hub"),
    "model_init_kwargs": "student",
    "trust_remote_code": "student.trust_remote_code",
    **dict.fromkeys(("trackio_static_space_id", "run_name", "use_cpu", "disable_tqdm"), ITSELF),
    **dict.fromkeys(("logging_nan_inf_filter", "logging_strategy"), ITSELF),
    **dict.fromkeys(("save_strategy", "save_total_limit", "save_only_model", "resume_from_checkpoint"), ITSELF),
    **dict.fromkeys(("eval_strategy", "eval_steps", "per_device_eval_batch_size", "local_rank"), ITSELF),
}
_SFT = {"num_train_epochs": "sft.epochs", "max_length": "lengths", "assistant_only_loss": ITSELF}
_GRPO = {
    **{
        name: f"grpo.{name}"
        for name in ("max_steps", "num_generations", "max_completion_length", "max_grad_norm", "temperature", "beta")
    },
    "reward_weights": "grpo.reward_weights",
    "num_train_epochs": "grpo.max_steps",
    **dict.fromkeys(("steps_per_generation", "generation_batch_size"), "grpo.gradient_accumulation"),
    **dict.fromkeys(("shuffle_dataset", "chat_template_kwargs", "max_tool_calling_iterations"), ITSELF),
    **dict.fromkeys(("eval_strategy", "eval_steps", "load_best_model_at_end"), "grpo.held_out"),
    **dict.fromkeys(("metric_for_best_model", "greater_is_better", "num_generations_eval"), "grpo.held_out"),
    "per_device_eval_batch_size": "grpo.held_out.batch_size",
    **dict.fromkeys(("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged"), "grpo.generation"),
    "transformers_continuous_batching_config": "grpo.generation.gpu_memory_utilization",
    "vllm_mode": "grpo.generation.mode",
    **{
        f"vllm_{name}": f"grpo.generation.{name}"
        for name in ("server_base_url", "server_timeout", "group_port", "gpu_memory_utilization", "max_model_length")
    },
    **dict.fromkeys(("vllm_server_host", "vllm_server_port"), "grpo.generation.server_base_url"),
    "vllm_tensor_parallel_size": "grpo.generation.tensor_parallel_size",
    "vllm_enable_sleep_mode": "grpo.generation.enable_sleep_mode",
}


def field_of(section: str, name: str) -> str | None:
    """The recipe field that sets a TRL argument: ITSELF if other fields determine it, None if no field does."""
    field = (_SHARED | {"sft": _SFT, "grpo": _GRPO}[section]).get(name)
    return None if field is None else field.format(section=section)


def check_arguments(section: str, given: dict[str, Any]) -> None:
    """Raises ValueError for the first argument that apprentice sets, that TRL lacks, or that has the wrong type."""
    for name in given:
        field = field_of(section, name)
        if field is not None:
            do = f"set {field}" if field else "it follows from the recipe's other fields"
            raise ValueError(f"{name} is set by apprentice; {do}")
    if not given:
        return
    config = _config_class(section)
    types = get_type_hints(config)
    known = {each.name for each in dataclasses.fields(config)}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"see TRL's documentation of {config.__name__}"
            raise ValueError(f"TRL's {config.__name__} has no argument {name}; {hint}")
        try:
            TypeAdapter(types[name]).validate_json(json.dumps(value, allow_nan=False), strict=True)
        except (ValueError, TypeError):  # a ValidationError among them
            raise ValueError(f"{name}: {value!r} is not of the type {_type_name(types[name])}") from None


def config_of(section: str, own: dict[str, Any], given: dict[str, Any]) -> Any:
    """TRL's config with our arguments and the recipe's. Raises Stop when TRL rejects the recipe's."""
    try:
        return _config_class(section)(**own, **given)
    except (ValueError, TypeError) as error:
        if not given:
            raise
        raise Stop(
            f"TRL rejects {section}.args: {' '.join(str(error).split())}", "Correct or remove the argument."
        ) from error


def _config_class(section: str) -> Any:
    import trl

    return getattr(trl, CONFIGS[section])


def _type_name(annotation: Any) -> str:
    return re.sub(r"\w+\.", "", inspect.formatannotation(annotation))
