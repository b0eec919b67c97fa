"""Law 12: the weights that the optimizer steps lie in fp32, whatever computes with them.

In: a model. Out: the same one, its trained weights in fp32, or all of them rounded for as long as it generates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def to_master_weights(model: Any) -> None:
    """Turns what is trained to fp32: TRL makes the adapters of a quantized model bf16."""
    import torch

    for weight in model.parameters():
        if weight.requires_grad and weight.dtype != torch.float32:
            weight.data = weight.data.float()


@contextmanager
def in_bf16(model: Any) -> Iterator[None]:
    """Weights rounded to bf16 within the block, and after it the very ones of before.

    Buffers stay as they are: the angles of rotary positions, rounded, would be those of other places.
    """
    import torch

    kept = [(weight, weight.data) for weight in model.parameters()]
    try:
        for weight, whole in kept:
            weight.data = whole.to(torch.bfloat16) if whole.is_floating_point() else whole
        yield
    finally:
        for weight, whole in kept:
            weight.data = whole
