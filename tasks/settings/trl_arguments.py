"""Checks the further TRL arguments of a recipe: `sft.args` for SFTConfig and `grpo.args` for GRPOConfig.

In: names and values. Out: the same, checked against TRL's config class; an argument that has a recipe field is rejected
with that field's name. TRL takes seconds to import, so it is imported only for recipes with such arguments, and once.

Settings that fit a training to its hardware: LoRA adapters and the generation engine.
"""

import dataclasses
import difflib
import inspect
import json
import re
from importlib.metadata import version
from typing import Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, field_validator, model_validator

from apprentice.envs.defaults import kept
from apprentice.envs.wire.server import without_secrets
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import OPERATIONAL, Spec

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
    installed = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers"))
    key = f"{installed}, {section}: {json.dumps(given, sort_keys=True, default=str)}"
    kept("trl_arguments", key, lambda: _checked(section, given))


def _checked(section: str, given: dict[str, Any]) -> float:
    """1.0 for arguments that TRL has, of its types. Raises ValueError."""
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
    return 1.0


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


class LoraSpec(Spec):
    """Train low-rank adapters and merge them into the weights at the end; the checkpoint has no adapters."""

    rank: int = Field(default=16, ge=1)
    """Rank of the adapters. A higher rank can learn more, and needs more memory for gradients and optimizer state."""
    alpha: int = Field(default=32, ge=1)
    """Scales the adapters' output by alpha ÷ rank. At 2, use ten times the learning rate of full training."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability of the adapters' inputs."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """The layers that get an adapter, by the ends of their names, such as q_proj. `all-linear`: all but the output
    layer."""
    quantized: bool = False
    """QLoRA: keep the frozen weights in 4 bits during training, then merge the adapters into the unrounded weights. An
    eighth of the memory of fp32, slower steps; needs an NVIDIA GPU."""

    @field_validator("targets")
    @classmethod
    def _leaves_the_output_layer(cls, targets: str | list[str]) -> str | list[str]:
        if "lm_head" in targets:
            raise ValueError("TRL bypasses the lm_head module: an adapter on it would never be trained; leave it out")
        return targets


class GenerationSpec(Spec):
    """The generation engine of GRPO. vLLM's settings are named as in TRL's GRPOConfig, without `vllm_`."""

    engine: Literal["plain", "continuous_batching", "vllm"] = "plain"
    """`plain`: transformers' generate, with padded batches. `continuous_batching`: transformers' continuous batching,
    for completions of very different lengths. `vllm`: the fastest; needs a share of the GPU's memory."""
    mode: Literal["colocate", "server"] = Field(default="colocate", json_schema_extra=OPERATIONAL)
    """Run vLLM in the training process on the same GPU (`colocate`), or use a vLLM server with its own GPUs."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0.0, lt=1.0, json_schema_extra=OPERATIONAL)
    """Share of the GPU's memory for generation. `colocate`: of all memory, default 0.3. `continuous_batching`: of the
    memory that the model leaves free, default 0.5. A vLLM server has its own setting."""
    max_model_length: int | None = Field(default=None, ge=1, json_schema_extra=OPERATIONAL)
    """Maximum length of prompt and completion in vLLM, in tokens. Less than the model's own saves memory. `colocate`
    only."""
    tensor_parallel_size: int = Field(default=1, ge=1, json_schema_extra=OPERATIONAL)
    """GPUs over which vLLM splits the model; must divide the number of processes. `colocate` only."""
    enable_sleep_mode: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Free vLLM's GPU memory during the optimizer step; waking it up takes time. `colocate` only."""
    server_base_url: str = Field(
        default="http://127.0.0.1:8000", pattern=r"^https?://\S+$", json_schema_extra=OPERATIONAL
    )
    """URL of the vLLM server."""
    server_timeout: float = Field(default=30.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds to wait for the server before GRPO stops. Checked before the model is loaded."""
    group_port: int = Field(default=51216, ge=1, le=65535, json_schema_extra=OPERATIONAL)
    """Port for sending the weights to the server; change it when it is in use."""

    @field_validator("server_base_url")
    @classmethod
    def _holds_no_secret(cls, url: str) -> str:
        return without_secrets(url, "TRL sends none to the vLLM server: let it listen on this machine only")

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> "GenerationSpec":
        colocated = ("max_model_length", "tensor_parallel_size", "enable_sleep_mode")
        used = {
            "plain": (),
            "continuous_batching": ("gpu_memory_utilization",),
            "colocate": ("mode", "gpu_memory_utilization", *colocated),
            "server": ("mode", "server_base_url", "server_timeout", "group_port"),
        }[self.mode if self.engine == "vllm" else self.engine]
        idle = [
            name
            for name, field in type(self).model_fields.items()
            if name not in ("engine", *used) and getattr(self, name) != field.default
        ]
        if idle:
            wanted = "set engine: vllm" if self.engine == "plain" else "leave it out"
            raise ValueError(f"{idle[0]} has no effect with {self.engine} ({self.mode}); {wanted}")
        return self
