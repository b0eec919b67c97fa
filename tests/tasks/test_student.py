"""The student: built from a seed, or a model of the Hub by its revision; fp32 where the optimizer steps (law 12)."""

import json
from pathlib import Path

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts import Questions
from apprentice.tasks.rendering import load_tokenizer
from apprentice.tasks.specs import BuiltStudent, StudentSpec
from apprentice.tasks.stage import Bench
from apprentice.tasks.store import digest
from apprentice.tasks.student import build_tokenizer, load_model, save, student

SMALL = StudentSpec(build=BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=64))


@pytest.fixture
def asked(bench: Bench) -> Questions:
    with bench.work.store.staging() as folder:
        rows = [{"purpose": "collect", "seed": place, "question": f"{place} + 1 =", "used": True} for place in range(9)]
        (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        counts = dict(collect=9, grpo=0, evaluate=0, dropped_from_grpo=0)
        return bench.work.store.publish(Questions, "k", folder, counts, {"stage": "questions"})


def test_the_same_seed_builds_the_same_student(bench: Bench, chain_sum: EnvironmentSpec, asked: Questions):
    digests = []
    for seed in (0, 0, 1):
        counts = student.body(bench, SMALL, chain_sum, asked, seed)
        digests.append(digest(bench.out))
    assert digests[0] == digests[1] != digests[2]
    assert counts["parameters"] == load_model(bench.out).num_parameters()


def test_letters_and_digits_stay_single_and_a_prompt_is_short(chain_sum: EnvironmentSpec):
    tokenizer = build_tokenizer(chain_sum, ["12 + 34 =", "56 - 78 ="])
    assert tokenizer.tokenize("12 - 34") == ["1", "2", "Ġ", "-", "Ġ", "3", "4"]


def test_weights_are_loaded_in_fp32_also_where_they_were_saved_in_bf16(bench: Bench, chain_sum: EnvironmentSpec, asked):
    import torch

    student.body(bench, SMALL, chain_sum, asked, 0)
    model = load_model(bench.out).to(torch.bfloat16)
    save(model, load_tokenizer(bench.out), bench.out)
    assert {weight.dtype for weight in load_model(bench.out).parameters()} == {torch.float32}


def test_a_named_model_is_kept_as_a_reference_and_loads_its_weights(
    bench: Bench, chain_sum: EnvironmentSpec, asked: Questions, tmp_path: Path
):
    """A folder stands in for the Hub's repository; the loading code is the same."""
    import torch

    student.body(bench, SMALL, chain_sum, asked, 7)
    hub = bench.out.rename(tmp_path / "hub")
    bench.out.mkdir()
    spec = StudentSpec(model=str(hub), revision="main")
    counts = student.body(bench, spec, chain_sum, asked, 0)
    assert not list(bench.out.glob("*.safetensors"))
    assert counts["parameters"] == load_model(hub).num_parameters()
    for one, other in zip(load_model(hub).parameters(), load_model(bench.out).parameters(), strict=True):
        assert torch.equal(one, other)
