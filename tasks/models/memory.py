"""Whether a training fits this machine: hardware, memory, number format.

In: a training's settings, the machine. Out: Stop before loading, where hardware or a package is missing; after an
out-of-memory error the memory is freed and Stop lists the settings to change, in order, from the recipe's values.
Law 12: the optimizer's weights are fp32; bf16 is for computation only.
"""

import gc
import hashlib
import json
import os
import platform
import sys
import timeit
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from apprentice.envs.defaults import kept
from apprentice.tasks.reporting.broken_packages import imported
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.failures import is_out_of_memory
from apprentice.tasks.settings.spec import EvaluateSpec, Spec
from apprentice.tasks.settings.training import Saving, TrainerSpec, halved


@contextmanager
def explained_oom(spec: TrainerSpec | EvaluateSpec) -> Iterator[None]:
    """Frees the memory of a body that ran out of it. Raises Stop with what to change in its section of the recipe."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _free(error)
        raise Stop(f"Out of memory: {_first_sentences(error)}", _do(spec.section, spec)) from error


def memory_remedies(section: str, spec: Spec, gpus: int, liger: bool = False) -> list[str]:
    """The settings of `section` that can still be changed, starting with those that change the training least.

    Args:
        liger: Whether Liger's kernels are installed.
    """
    if isinstance(spec, EvaluateSpec):
        savings = halved("batch_size", spec.batch_size, "the same answers, in smaller batches")
    else:
        assert isinstance(spec, TrainerSpec)
        kernels = [Saving({"liger": True}, "fused kernels: the same training")]
        own = [*(kernels if gpus and liger and not spec.liger else []), *_sparing(spec, gpus)]
        savings = [*spec.first_savings(), *own, *spec.last_savings()]
    return [_named(section, saving) for saving in savings if _is_valid(spec, saving)]


def _named(section: str, saving: Saving) -> str:
    settings = (f"{section}.{path}={json.dumps(value)}" for path, value in saving.change.items())
    return f"{' and '.join(settings)} ({saving.why})"


def _is_valid(spec: Spec, saving: Saving) -> bool:
    changed = spec.model_dump()
    for path, value in saving.change.items():
        *parents, last = path.split(".")
        into = changed
        for name in parents:
            into[name] = into[name] or {}
            into = into[name]
        into[last] = value
    try:
        type(spec).model_validate(changed)
    except ValidationError:
        return False
    return True


def _sparing(spec: TrainerSpec, gpus: int) -> Iterator[Saving]:
    whole = spec.batch_size * spec.gradient_accumulation
    sizes = (size for size in range(spec.batch_size - 1, 0, -1) if spec.batch_size % size == 0)
    parts = (
        Saving({"batch_size": size, "gradient_accumulation": whole // size}, "the same step, in smaller parts")
        for size in sizes
    )
    if first := next((remedy for remedy in parts if _is_valid(spec, remedy)), None):
        yield first
    if not spec.gradient_checkpointing:
        yield Saving({"gradient_checkpointing": True}, "a third more time")
    if not spec.bf16:
        yield Saving({"bf16": True}, "halves the activations")
    if spec.lora is None:
        yield Saving({"lora": {}}, "gradients and optimizer state of adapters only; raise learning_rate tenfold")
    if gpus and (spec.lora is None or not spec.lora.quantized):
        yield Saving({"lora.quantized": True}, "frozen weights in 4 bits")


def _do(section: str, spec: Spec) -> str:
    import torch
    from trl.import_utils import is_liger_kernel_available

    remedies = memory_remedies(section, spec, torch.cuda.device_count(), is_liger_kernel_available())
    remedies.append("a smaller student, or a device with more memory")
    return "Change one of these and run again, in this order:\n" + "\n".join(
        f"  {number}. {remedy}" for number, remedy in enumerate(remedies, start=1)
    )


def _first_sentences(error: BaseException) -> str:
    """The requested and available memory, without the allocator's hints that follow."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    sentences = (lines[0] if lines else type(error).__name__).split(". ")
    return ". ".join(sentences[:3]).rstrip(".") + "."


def _free(error: BaseException) -> None:
    """Frees the memory of the failed frames: their traceback keeps the model and its activations alive."""
    import torch

    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Machine(NamedTuple):
    gpus: int
    """Number of NVIDIA GPUs that torch sees."""
    processes: int
    """Number of training processes."""
    notebook: bool
    """Whether this process is an IPython session."""


def this_machine() -> Machine:
    import torch

    ipython = sys.modules.get("IPython")
    return Machine(
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        processes=int(os.environ.get("WORLD_SIZE", "1")),
        notebook=ipython is not None and ipython.get_ipython() is not None,
    )


def check_training(spec: TrainerSpec, machine: Machine) -> None:
    """Raises Stop when a training needs hardware or a package that is missing."""
    section = spec.section
    if spec.lora is not None:
        imported("peft", f"{section}.lora", "openenv-apprentice[lora]")
        if spec.lora.quantized:
            _needs_gpu(f"{section}.lora.quantized", machine, f"Set {section}.lora.quantized: false: plain LoRA")
            imported("bitsandbytes", f"{section}.lora.quantized", "openenv-apprentice[qlora]")
    if spec.liger:
        _needs_gpu(f"{section}.liger", machine, f"Set {section}.liger: false: training")
        imported("liger_kernel", f"{section}.liger", "openenv-apprentice[liger]")
        from trl.import_utils import LIGER_KERNEL_MIN_VERSION, is_liger_kernel_available

        if not is_liger_kernel_available():
            raise Stop(
                f"TRL needs liger-kernel {LIGER_KERNEL_MIN_VERSION} or later, and an older one is installed.",
                f"pip install --upgrade 'openenv-apprentice[liger]', or set {section}.liger: false.",
            )


def _needs_gpu(setting: str, machine: Machine, else_do: str) -> None:
    if not machine.gpus:
        raise Stop(
            f"{setting} needs an NVIDIA GPU, and torch sees none.",
            f"{else_do} runs without one. Or run on a machine with a GPU (check with nvidia-smi).",
        )


def to_master_weights(model: Any) -> None:
    """Converts trainable weights to fp32, because TRL creates the adapters of a quantized model in bf16."""
    import torch

    for weight in model.parameters():
        if weight.requires_grad and weight.dtype != torch.float32:
            weight.data = weight.data.float()


def round_weights(model: Any) -> None:
    """Rounds the weights to bf16. Buffers keep their precision: rounded rotary angles would encode other positions."""
    import torch

    for weight in model.parameters():
        if weight.data.is_floating_point():
            weight.data = weight.data.to(torch.bfloat16)


FASTER = 1.3
"""Ratio of two products' times from which bf16 pays: a model has other operations than products of matrices."""


def bf16_pays() -> bool:
    """Whether this machine computes faster in bf16: as its GPU says, or as a product of matrices on the CPU takes.

    A flag of the processor does not say it: without the hardware autocast is slower (pytorch#86270). The ratio is
    measured once, in a tenth of a second, and kept.
    """
    return kept("bf16", this_torch(), _times_faster) >= FASTER


def this_torch() -> str:
    """This machine's processor and version of torch, which a home that several machines share tells apart."""
    cpu, known = Path("/proc/cpuinfo"), ("model name", "flags")
    lines = cpu.read_text().splitlines() if cpu.exists() else [platform.processor()]
    said = "\n".join(sorted({line for line in lines if not cpu.exists() or line.startswith(known)}))
    return f"torch {version('torch')} on {hashlib.sha256(said.encode()).hexdigest()[:12]}"


def _times_faster() -> float:
    """Time of a product of matrices in fp32, as a multiple of that in bf16; of a GPU's, what it says of itself."""
    import torch

    if torch.cuda.is_available():
        return float("inf") if torch.cuda.is_bf16_supported(including_emulation=False) else 0.0
    left, right = torch.randn(256, 1024), torch.randn(1024, 1024)

    def best(dtype: Any) -> float:
        pair = left.to(dtype), right.to(dtype)
        return min(timeit.repeat(lambda: torch.mm(*pair), repeat=8, number=1))

    return best(torch.float32) / best(torch.bfloat16)


@contextmanager
def in_bf16(model: Any) -> Iterator[None]:
    """Rounds the weights to bf16 within the block and restores the original ones after it."""
    kept = [(weight, weight.data) for weight in model.parameters()]
    try:
        round_weights(model)
        yield
    finally:
        for weight, whole in kept:
            weight.data = whole
