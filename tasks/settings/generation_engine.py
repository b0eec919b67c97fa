"""The engine that generates the rollouts of an online training.

In: `generation` of the section. Out: validated settings; those without an effect are refused.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from apprentice.envs.wire.server import without_secrets
from apprentice.tasks.settings.spec import OPERATIONAL, Spec

NO_SECRET = "TRL sends none to the vLLM server: let it listen on this machine only"
SHARES = {"vllm": 0.3, "continuous_batching": 0.5}
"""TRL's defaults for generation's share of the GPU memory."""


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
    server_base_url: Annotated[str, AfterValidator(partial(without_secrets, remedy=NO_SECRET))] = Field(
        default="http://127.0.0.1:8000", pattern=r"^https?://\S+$", json_schema_extra=OPERATIONAL
    )
    """URL of the vLLM server."""
    server_timeout: float = Field(default=30.0, gt=0, json_schema_extra=OPERATIONAL)
    """Seconds to wait for the server before GRPO stops. Checked before the model is loaded."""
    group_port: int = Field(default=51216, ge=1, le=65535, json_schema_extra=OPERATIONAL)
    """Port for sending the weights to the server; change it when it is in use."""

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
