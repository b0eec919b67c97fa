"""Who generates GRPO's completions, as TRL 1.16 has it: transformers, its continuous batching, or vLLM.

In: `grpo.generation`. Out: arguments for GRPOConfig, and a trainer class that is safe with the engine; Stop, before
anything is loaded, where the machine or the vLLM server lacks something.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from apprentice.tasks.models.hardware import Machine
from apprentice.tasks.models.precision import in_bf16
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.hardware import GenerationSpec
from apprentice.tasks.training import trl_internals
from apprentice.tasks.training.vllm_server import check_server

INSTALL = (
    "Use the image of deployments/docker/gpu.Dockerfile, or install it as that does (pip alone finds no versions that "
    "fit: vLLM asks for an older fastapi than Prefect); or set grpo.generation.engine: plain."
)


def check_generation(spec: GenerationSpec, machine: Machine) -> None:
    """Raises Stop where the engine could not run, with the way out."""
    if spec.engine != "vllm":
        return
    if spec.mode == "colocate":
        _check_colocation(spec, machine)
    _check_package()
    if not machine.gpus:
        raise Stop(
            "vLLM needs an NVIDIA GPU, and torch sees none"
            + (": the weights travel to the server from one." if spec.mode == "server" else "."),
            "Set grpo.generation.engine: plain, or run where there is one; nvidia-smi shows whether there is.",
        )
    if spec.mode == "server":
        check_server(spec.server_base_url, spec.server_timeout)


def _check_colocation(spec: GenerationSpec, machine: Machine) -> None:
    if machine.notebook:
        raise Stop(
            "vLLM starts its processes as a script's, which fails within IPython and Jupyter.",
            "Start the run from a terminal (apprentice run), or set grpo.generation.mode: server.",
        )
    if machine.processes % spec.tensor_parallel_size:
        raise Stop(
            f"grpo.generation.tensor_parallel_size ({spec.tensor_parallel_size}) does not divide the number of "
            f"processes that train ({machine.processes}).",
            "Start as many processes with accelerate, or set it to 1.",
        )


def _check_package() -> None:
    """Which versions TRL takes, only TRL knows: it warns of others, which then fail in mid-training."""
    from trl.import_utils import is_vllm_available

    if find_spec("vllm") is None:
        raise Stop("grpo.generation.engine: vllm needs vLLM, which is not installed.", INSTALL)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        is_vllm_available()
    if told:
        raise Stop(str(told[0].message), INSTALL)


def generation_arguments(spec: GenerationSpec) -> dict[str, Any]:
    """For GRPOConfig."""
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


def with_engine(trainer_class: type, spec: GenerationSpec) -> type:
    """The trainer class, made safe for continuous batching where that generates."""
    batching = trl_internals.batching_trainer
    return batching(trainer_class, _rounded_for_a_while) if spec.engine == "continuous_batching" else trainer_class


@contextmanager
def _rounded_for_a_while(trainer: Any) -> Iterator[None]:
    """Generates in bf16 where the training computes in it: the cache takes its type from the weights."""
    if not trainer.args.bf16:
        yield
        return
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise Stop(
            "Continuous batching in bf16 needs whole weights in each process, and FSDP or DeepSpeed splits them.",
            "Set grpo.generation.engine: plain or vllm.",
        )
    trainer.args.bf16 = False
    try:
        with in_bf16(trainer.model):
            yield
    finally:
        trainer.args.bf16 = True
