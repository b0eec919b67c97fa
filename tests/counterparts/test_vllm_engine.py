"""vLLM as the engine of GRPO, in the trainer's process: the real one, on the CPU, with the pins of the GPU's image."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.counterparts.servers import ON_CPU, VLLM, said

ROOT = Path(__file__).parents[2]
TRAIN = """
import sys

def main():
    import torch
    from vllm.model_executor.layers import utils

    def whole(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = whole  # vLLM's CPU kernels pack the weights, and could load no others
    from apprentice.tasks.rollouts import generation

    generation.check_generation = lambda *_: None  # it refuses vLLM without a GPU
    from apprentice import collect, grpo, load_recipe, sft

    recipe = load_recipe(sys.argv[1], sys.argv[2:])
    print("FOLDER", grpo(recipe, sft(recipe, collect(recipe))).folder)

if __name__ == "__main__":
    main()
"""
SETTINGS = {
    "student.build": "{hidden_size: 64, intermediate_size: 128, layers: 1, heads: 2, max_positions: 256}",
    "windows.collect.size": 200,
    "sft.epochs": 6,
    "grpo.max_steps": 3,
    "grpo.batch_size": 16,
    "grpo.learning_rate": 0.003,
    "grpo.logging_steps": 1,
    "grpo.generation": "{engine: vllm, mode: colocate, max_model_length: 256, gpu_memory_utilization: 0.1}",
}


Log = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def log(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[str, Log]:
    """The log of a GRPO whose steps change the weights."""
    home = tmp_path_factory.mktemp("engine")
    (home / "train.py").write_text(TRAIN)
    settings = SETTINGS | {"store.path": home / "store", "grpo.bf16": str(request.param == "bfloat16").lower()}
    command = [str(VLLM / "python"), "train.py", str(ROOT / "deployments/recipes/toy.yaml")]
    command += [f"{name}={value}" for name, value in settings.items()]
    printed = said(home, *command, PYTHONPATH=str(ROOT), **ON_CPU)
    folder = Path(re.findall(r"^FOLDER (\S+)$", printed, re.MULTILINE)[0])
    assert json.loads((folder / "signals.json").read_text())["signals"] == []
    return request.param, json.loads((folder / "log.json").read_text())


def test_the_engine_and_the_trainer_agree_on_every_token_while_the_weights_change(
    log: tuple[str, Log],
):
    dtype, entries = log
    assert len(entries) == 3
    assert all(entry["grad_norm"] > 0.0 for entry in entries), "each step changes the weights"
    gaps = [entry["sampling/sampling_logp_difference/mean"] for entry in entries]
    most, least = (0.05, 1e-5) if dtype == "bfloat16" else (1e-5, 0.0)  # of the same ids: no text is in between
    assert all(least < gap < most for gap in gaps), gaps
    ratios = [entry["sampling/importance_sampling_ratio/mean"] for entry in entries]
    assert all(abs(ratio - 1.0) < (0.2 if dtype == "bfloat16" else 1e-3) for ratio in ratios), ratios
