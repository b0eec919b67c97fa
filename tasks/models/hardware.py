"""What a training needs of its machine beyond a processor, looked at before anything is loaded.

In: a trainer's settings and what the machine has. Out: nothing; Stop with the way out where it lacks something.
"""

import os
import sys
from importlib.util import find_spec
from typing import NamedTuple

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.training import TrainerSpec


class Machine(NamedTuple):
    """What is looked at."""

    gpus: int
    """NVIDIA's, as torch sees them."""
    processes: int
    """That train together."""
    notebook: bool
    """Whether this runs within IPython."""


def this_machine() -> Machine:
    import torch

    ipython = sys.modules.get("IPython")
    return Machine(
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        processes=int(os.environ.get("WORLD_SIZE", "1")),
        notebook=ipython is not None and ipython.get_ipython() is not None,
    )


def check_training(section: str, spec: TrainerSpec, machine: Machine) -> None:
    """Raises Stop where `section` asks for what is not here."""
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
            f"Install it (pip install 'apprentice[{extra}]'), or leave {setting} out.",
        )


def _needs_gpu(setting: str, machine: Machine, else_do: str) -> None:
    if not machine.gpus:
        raise Stop(
            f"{setting} needs an NVIDIA GPU, and torch sees none.",
            f"{else_do} runs without one. Or run on a machine that has one; nvidia-smi shows whether it does.",
        )


def _check_liger(section: str) -> None:
    from trl.import_utils import LIGER_KERNEL_MIN_VERSION, is_liger_kernel_available

    if not is_liger_kernel_available():
        raise Stop(
            f"TRL takes liger-kernel from {LIGER_KERNEL_MIN_VERSION} on, and an older one is installed.",
            f"pip install --upgrade 'apprentice[liger]', or set {section}.liger: false.",
        )
