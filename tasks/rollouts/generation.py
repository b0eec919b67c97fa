"""The generation engines of GRPO in TRL 1.16: transformers, its continuous batching, or vLLM.

In: `grpo.generation`. Out: arguments for GRPOConfig, and a trainer class that is safe with the engine; Stop, before the
model is loaded, when the machine or the vLLM server does not support the settings.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.memory import Machine, in_bf16
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.serving.vllm_server import check_server
from apprentice.tasks.settings.generation_engine import GenerationSpec

INSTALL = (
    "Use the image of deployments/docker/gpu.Dockerfile, or install vLLM as it does (pip alone finds no compatible "
    "versions: vLLM requires an older fastapi than Prefect); or set grpo.generation.engine: plain."
)


def check_generation(spec: GenerationSpec, machine: Machine) -> None:
    """Raises Stop when the engine cannot run."""
    if spec.engine != "vllm":
        return
    if spec.mode == "colocate" and machine.notebook:
        raise Stop(
            "vLLM starts its processes from the main script, which fails in IPython and Jupyter.",
            "Start the run from a terminal (apprentice run), or set grpo.generation.mode: server.",
        )
    if spec.mode == "colocate" and machine.processes % spec.tensor_parallel_size:
        raise Stop(
            f"grpo.generation.tensor_parallel_size ({spec.tensor_parallel_size}) does not divide the number of "
            f"training processes ({machine.processes}).",
            "Change grpo.processes, or set it to 1.",
        )
    _check_package()
    if not machine.gpus:
        raise Stop(
            "vLLM needs an NVIDIA GPU, and torch sees none"
            + (": the weights are sent to the server from one." if spec.mode == "server" else "."),
            "Set grpo.generation.engine: plain, or run on a machine with a GPU (check with nvidia-smi).",
        )
    if spec.mode == "server":
        check_server(spec.server_base_url, spec.server_timeout)


def _check_package() -> None:
    """Raises Stop for a vLLM version that TRL does not support; TRL itself only warns and fails during training."""
    from trl.import_utils import is_vllm_available

    if find_spec("vllm") is None:
        raise Stop("grpo.generation.engine: vllm needs vLLM, which is not installed.", INSTALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_vllm_available()
    if caught:
        raise Stop(str(caught[0].message), INSTALL)


def generation_arguments(spec: GenerationSpec) -> dict[str, Any]:
    if spec.engine == "plain":
        return {}
    share = spec.gpu_memory_utilization
    if spec.engine == "continuous_batching":
        cache = {} if share is None else {"max_memory_percent": share}
        return {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": cache}
    given: dict[str, Any] = {"use_vllm": True, "vllm_mode": spec.mode}
    if spec.mode == "server":
        return given | {
            "vllm_server_base_url": spec.server_base_url,
            "vllm_server_timeout": spec.server_timeout,
            "vllm_group_port": spec.group_port,
        }
    return given | {
        **({} if share is None else {"vllm_gpu_memory_utilization": share}),
        "vllm_max_model_length": spec.max_model_length,
        "vllm_tensor_parallel_size": spec.tensor_parallel_size,
        "vllm_enable_sleep_mode": spec.enable_sleep_mode,
    }


def with_engine(trainer_class: type, spec: GenerationSpec, bf16: bool) -> type:
    """The trainer class, generating in the type that the training computes in, and made safe for continuous batching
    or for a vLLM beside it.

    Args:
        bf16: Whether the training computes in bf16.
    """
    if spec.engine == "plain" and bf16:
        return trl_internals.rounding_trainer(trainer_class, _rounded_if_whole)
    if spec.engine == "continuous_batching":
        return trl_internals.batching_trainer(trainer_class, _generating_in_bf16)
    if spec.engine == "vllm" and spec.mode == "colocate":
        return trl_internals.colocating_trainer(trainer_class, "bfloat16" if bf16 else "float32")
    return trainer_class


@contextmanager
def _rounded_if_whole(trainer: Any) -> Iterator[None]:
    """Rounds the weights to bf16 once for all tokens, where autocast would round them again at every token."""
    is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    with nullcontext() if is_sharded else in_bf16(trainer.model):
        yield


@contextmanager
def _generating_in_bf16(trainer: Any) -> Iterator[None]:
    """Rounds the weights to bf16 while generating if the training computes in bf16: the cache has the weights' type."""
    if not trainer.args.bf16:
        yield
        return
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise Stop(
            "Continuous batching in bf16 needs whole weights in each process; FSDP and DeepSpeed shard them.",
            "Set grpo.generation.engine: plain or vllm.",
        )
    trainer.args.bf16 = False
    try:
        with in_bf16(trainer.model):
            yield
    finally:
        trainer.args.bf16 = True
