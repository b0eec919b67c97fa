"""The settings by which a training fits its hardware: adapters in place of all weights, and who generates.

In: `sft.lora`, `grpo.lora` and `grpo.generation` of a recipe. Out: checked settings; what a machine must have for them
is looked at in hardware.py and generation.py.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from apprentice.envs.wire.address import without_secrets
from apprentice.tasks.settings.spec import OPERATIONAL, Spec


class LoraSpec(Spec):
    """Low-rank adapters are trained, and at the end merged: what is published is a checkpoint like any other."""

    rank: int = Field(default=16, ge=1)
    """Width of the adapters: gradients and optimizer state grow with it, and what can be learned."""
    alpha: int = Field(default=32, ge=1)
    """Their output is scaled by alpha ÷ rank. A learning rate ten times that of whole weights suits 2."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of an adapter's inputs that is left out at random in training."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """The layers that get one, by the ends of their names, such as q_proj; `all-linear`: all but the output layer."""
    quantized: bool = False
    """QLoRA: the frozen weights lie in 4 bits while adapters are trained, which are then merged into weights that were
    never rounded. An eighth of the memory of fp32, for slower steps; needs an NVIDIA GPU."""

    @field_validator("targets")
    @classmethod
    def _leaves_the_output_layer(cls, targets: str | list[str]) -> str | list[str]:
        if "lm_head" in targets:
            raise ValueError("TRL multiplies by lm_head itself: an adapter on it would never be trained; leave it out")
        return targets


class GenerationSpec(Spec):
    """Who generates GRPO's completions; the names of vLLM's settings are those of TRL's GRPOConfig, less `vllm_`."""

    engine: Literal["plain", "continuous_batching", "vllm"] = "plain"
    """`plain`: transformers' generate, which pads a batch and ends with its longest completion. `continuous_batching`:
    transformers' own, for completions of very different lengths. `vllm`: the fastest, for its share of the memory."""
    mode: Literal["colocate", "server"] = Field(default="colocate", json_schema_extra=OPERATIONAL)
    """vLLM in the training's own process and on its GPU, or as a server with GPUs of its own."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0.0, lt=1.0, json_schema_extra=OPERATIONAL)
    """Share of the GPU's memory for generation: of all of it for `colocate`, 0.3 when left out; of what the model
    leaves for `continuous_batching`, 0.5 when left out. A server has a setting of its own."""
    max_model_length: int | None = Field(default=None, ge=1, json_schema_extra=OPERATIONAL)
    """vLLM's longest sequence, prompt and completion: less than the model's own saves memory. `colocate` only."""
    tensor_parallel_size: int = Field(default=1, ge=1, json_schema_extra=OPERATIONAL)
    """GPUs over which vLLM spreads the model; it divides the number of processes. `colocate` only."""
    enable_sleep_mode: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """vLLM leaves the GPU's memory to the optimizer's step, and is woken after it, which takes time. `colocate` only.
    """
    server_base_url: str = Field(
        default="http://127.0.0.1:8000", pattern=r"^https?://\S+$", json_schema_extra=OPERATIONAL
    )
    """Where the vLLM server is."""
    server_timeout: float = Field(default=30.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds that it may take to answer before GRPO stops; nothing is loaded before it does."""
    group_port: int = Field(default=51216, ge=1, le=65535, json_schema_extra=OPERATIONAL)
    """The port over which a server is sent the weights; another one where it is taken."""

    @field_validator("server_base_url")
    @classmethod
    def _holds_no_secret(cls, url: str) -> str:
        return without_secrets(url, "vLLM's server takes none from TRL: let it listen where only this machine is")

    @model_validator(mode="after")
    def _is_heeded(self) -> "GenerationSpec":
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
            raise ValueError(f"{idle[0]} is not heeded by {self.engine} ({self.mode}); {wanted}")
        return self
