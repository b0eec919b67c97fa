"""What the GPU benchmark's figures rest on: the work that it counts, and how it generates."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.bench import gpu
from tests.bench.device import Shape, peak_of
from tests.bench.gpu_generation import generating
from tests.bench.gpu_settings import DOCUMENTS_STEPS, SIZES, VARIANTS, How, Size, variant
from tests.bench.gpu_student import model_of

SHAPE = Shape(32, 64, 2, 4, 2, 8, 128, 64)


def model(attention: str = "sdpa") -> Any:
    return model_of(Size(SHAPE, 1, {}), SimpleNamespace(eos_token_id=0, pad_token_id=1), attention)


def test_the_work_counted_is_that_of_the_matrix_products_and_half_of_all_pairs_of_tokens():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    length, student = 40, model("eager")  # eager attention is made of products that can be counted: of all pairs
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        student(torch.ones(1, length, dtype=torch.long))
    acausal = 2 * SHAPE.heads * SHAPE.head_dim * SHAPE.layers * length**2
    assert SHAPE.forward(length, length) == counted.get_total_flops() - acausal


def test_the_full_size_has_as_many_weights_as_qwen3_1_7b():
    shape = SIZES["full"].shape
    assert (shape.matrices + shape.hidden * shape.vocabulary) / 1e9 == pytest.approx(1.72, abs=0.005)


def test_weights_are_rounded_once_a_generation_to_the_numbers_that_autocast_rounds_them_to_at_each_token():
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from torch.utils._python_dispatch import TorchDispatchMode

    student = model()
    weights = {id(parameter) for parameter in student.parameters()}

    class Casts(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.number += func is torch.ops.aten._to_copy.default and id(args[0]) in weights
            return func(*args, **(kwargs or {}))

    AcceleratorState._reset_state(True)  # another test's precision, as TrainingArguments reset it
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    wrapped = accelerator.prepare_model(student)
    trainer = SimpleNamespace(accelerator=accelerator, model=student, model_wrapped=wrapped)
    casts, texts = {}, {}
    for way in ("autocast", "cast_once", "bf16"):
        torch.manual_seed(0)
        with generating(trainer, How(generation=way)), Casts() as counted, torch.no_grad():
            texts[way] = trainer.model_wrapped.generate(
                torch.ones(2, 4, dtype=torch.long), max_new_tokens=10, min_new_tokens=10, do_sample=True
            )
        casts[way] = counted.number
    assert casts["cast_once"] == casts["autocast"] / 10
    assert casts["bf16"] == 0
    assert torch.equal(texts["autocast"], texts["cast_once"])
    assert texts["bf16"].shape == texts["autocast"].shape
    assert trainer.model_wrapped is wrapped


def test_every_variant_is_one_that_the_stages_take_and_an_override_reaches_its_setting():
    for name in VARIANTS:
        assert variant(name, SIZES["toy"], ["grpo.batch_size=8"]).grpo.batch_size == 8
    documents = variant("documents", SIZES["full"], [])
    assert (documents.grpo.batch_size, documents.grpo.gradient_accumulation, documents.grpo.num_generations) == (
        1,
        4,
        2,
    )
    assert (documents.sft.epochs, documents.sft.learning_rate, documents.how.trainer) == (3.0, 2e-5, "trl")
    assert documents.grpo.max_steps < DOCUMENTS_STEPS["grpo"]


def test_a_static_cache_is_refused_where_keys_and_values_would_differ_in_kind():
    with pytest.raises(ValidationError, match=r"how\.cache=static needs how\.generation=bf16"):
        How(cache="static")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A10G", None),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_a_device_is_known_by_the_name_that_cuda_gives_it(name: str, tflops: int | None):
    assert peak_of(name) == (tflops and tflops * 1e12)


def _stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """In place of Python: it is given -m, module, training, variants, size and the number of an open file."""
    (python := folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_a_training_that_dies_keeps_the_rows_that_it_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _stand_in(monkeypatch, tmp_path, """echo '{"steps": 30, "seconds": 9.0, "s_per_step": 0.2}' > /dev/fd/$6; exit 3""")
    first, second = gpu._rows("full", "sft", ["documents", "ours"], [], time.monotonic() + 60)
    assert (first["settings"], first["whole_s"], first["times_faster"]) == ("documents", 23.4, 12.8)
    assert second == {"student": "full", "training": "sft", "settings": "ours", "failed": "ended with 3"}
    assert gpu._line(second).count("|") == len(gpu.COLUMNS) + 1


def test_what_has_no_time_left_is_ended_and_its_rows_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _stand_in(monkeypatch, tmp_path, "exec sleep 60")
    began = time.monotonic()
    (row,) = gpu._rows("toy", "grpo", ["ours"], [], began + 0.5)
    assert row["failed"] == "no time was left"
    assert [each["failed"] for each in gpu._rows("toy", "grpo", ["ours"], [], began)] == ["no time was left"]
    assert time.monotonic() - began < 30
