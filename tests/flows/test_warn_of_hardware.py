"""What a training would lack is said before anything is bought."""

from pathlib import Path

import pytest

from apprentice.flows.hardware import warn_of_hardware
from apprentice.flows.recipe import load_recipe

TOY = Path(__file__).parents[2] / "deployments/recipes/toy.yaml"


def test_what_both_trainings_lack_is_said_at_once(capfd: pytest.CaptureFixture[str]):
    warn_of_hardware(load_recipe(TOY, ["sft.lora.quantized=true", "grpo.generation.engine=vllm"]))
    said = " ".join(capfd.readouterr().out.split())
    assert "sft.lora.quantized needs an NVIDIA GPU" in said
    assert "grpo.generation.engine: vllm needs vLLM" in said


def test_nothing_is_said_where_a_processor_will_do(capfd: pytest.CaptureFixture[str]):
    warn_of_hardware(load_recipe(TOY, []))
    assert capfd.readouterr().out == ""
