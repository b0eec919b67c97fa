"""Law 12: the optimizer's weights are fp32; bf16 is for computation only.

In: a model. Out: the same model with trainable weights in fp32, or rounded to bf16 while it generates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def to_master_weights(model: Any) -> None:
    """Converts trainable weights to fp32, because TRL creates the adapters of a quantized model in bf16."""
    import torch

    for weight in model.parameters():
        if weight.requires_grad and weight.dtype != torch.float32:
            weight.data = weight.data.float()


@contextmanager
def in_bf16(model: Any) -> Iterator[None]:
    """Rounds the weights to bf16 within the block and restores the original ones after it.

    Buffers keep their precision: rounded rotary angles would encode other positions.
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
