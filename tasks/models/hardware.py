"""Checks before loading whether the machine supports a training's settings.

In: a trainer's settings and the machine's hardware. Out: nothing; Stop with a remedy when something is missing.
"""

import os
import sys
from importlib.util import find_spec
from typing import NamedTuple

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import TrainerSpec


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


def check_training(section: str, spec: TrainerSpec, machine: Machine) -> None:
    """Raises Stop when `section` needs hardware or a package that is missing."""
    if spec.lora is not None:
        _needs("peft", f"{section}.lora", "lora")
        if spec.lora.quantized:
            _needs_gpu(f"{section}.lora.quantized", machine, f"Set {section}.lora.quantized: false: plain LoRA")
            _needs("bitsandbytes", f"{section}.lora.quantized", "qlora")
    if spec.liger:
        _needs_gpu(f"{section}.liger", machine, f"Set {section}.liger: false: training")
        _needs("liger_kernel", f"{section}.liger", "liger")
        _check_liger(section)


def _needs(package: str, setting: str, extra: str) -> None:
    if find_spec(package) is None:
        raise Stop(
            f"{setting} needs {package.replace('_', '-')}, which is not installed.",
            f"Install it (pip install 'openenv-apprentice[{extra}]'), or leave {setting} out.",
        )


def _needs_gpu(setting: str, machine: Machine, else_do: str) -> None:
    if not machine.gpus:
        raise Stop(
            f"{setting} needs an NVIDIA GPU, and torch sees none.",
            f"{else_do} runs without one. Or run on a machine with a GPU (check with nvidia-smi).",
        )


def _check_liger(section: str) -> None:
    from trl.import_utils import LIGER_KERNEL_MIN_VERSION, is_liger_kernel_available

    if not is_liger_kernel_available():
        raise Stop(
            f"TRL needs liger-kernel {LIGER_KERNEL_MIN_VERSION} or later, and an older one is installed.",
            f"pip install --upgrade 'openenv-apprentice[liger]', or set {section}.liger: false.",
        )
