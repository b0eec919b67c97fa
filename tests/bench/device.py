"""What a device did: seconds, peak memory, and the share of its peak that a training used.

In: shapes and token counts. Out: figures; None where a device is unknown or has no such figure.
The work counted is what the method needs (model FLOPs, https://arxiv.org/abs/2204.02311, appendix B, attention causal):
weights that are computed twice because activations were thrown away count once.
"""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

PEAKS = {
    "A100": 312e12,
    "A10": 125e12,
    "A30": 165e12,
    "A40": 149.7e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
}
"""bf16 FLOPs a second on the matrix units, dense: half of what NVIDIA's data sheets print "with sparsity".

https://www.nvidia.com/en-us/data-center/ a100, a10, l40s, l4, h100, h200, dgx-b200
"""


class Shape(NamedTuple):
    """A Qwen3."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int

    @property
    def matrices(self) -> int:
        """Weights that every token is multiplied with, the head's not among them."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def forward(self, length: int, predicted: int) -> float:
        """FLOPs of reading a sequence, or of generating it with a cache, that many of its tokens predicted."""
        attention = 2 * self.heads * self.head_dim * self.layers * length**2  # causal: half of all pairs
        return 2 * self.matrices * length + attention + 2 * self.hidden * self.vocabulary * predicted


def peak_flops() -> float | None:
    """Of the device at hand, in bf16."""
    import torch

    return peak_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def peak_of(device: str) -> float | None:
    """By the device's name as CUDA has it; the longest name that fits it counts."""
    words = set(device.replace("-", " ").split())
    fitting = [name for name in PEAKS if set(name.split()) <= words]
    return PEAKS[max(fitting, key=len)] if fitting else None


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"


def peak_memory() -> int:
    """Bytes: the most that tensors took on the GPU; without one, the most that this process took."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reserved_memory() -> int:
    """Bytes: the most that was taken of the GPU, unused parts included; without one, as `peak_memory`."""
    import torch

    return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else peak_memory()


def forget_peak() -> None:
    """Begin the peaks anew, with what is taken now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # man proc


def now() -> float:
    """Seconds, once the device has done all that it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def clock() -> Any:
    """A trainer's callback that notes when training began and when each step was done."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.ticks: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ticks.append(now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ticks.append(now())

    return Clock()
