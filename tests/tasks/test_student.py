"""The student: built from a seed, or a model of the Hub by its revision; fp32 where the optimizer steps (law 12)."""

import json
from pathlib import Path

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts import Questions
from apprentice.tasks.errors import Stop
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


OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "own"

class Own(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def with_code(bench: Bench, chain_sum: EnvironmentSpec, asked: Questions, tmp_path: Path) -> Path:
    """A model whose repository brings code of its own."""
    student.body(bench, SMALL, chain_sum, asked, 7)
    hub = bench.out.rename(tmp_path / "hub")
    bench.out.mkdir()
    (hub / "own.py").write_text(OWN_CODE)
    config = json.loads((hub / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    config |= {"model_type": "own", "auto_map": own}
    (hub / "config.json").write_text(json.dumps(config))
    return hub


def test_code_of_a_models_repository_is_refused(with_code: Path, bench: Bench, chain_sum: EnvironmentSpec, asked):
    spec = StudentSpec(model=str(with_code), revision="main")
    with pytest.raises(Stop, match="needs Python code of its own repository") as stopped:
        student.body(bench, spec, chain_sum, asked, 0)
    assert "trust_remote_code" in str(stopped.value)


def test_code_that_the_recipe_trusts_runs_also_in_what_was_trained_from_it(
    with_code: Path, bench: Bench, chain_sum: EnvironmentSpec, asked: Questions, tmp_path: Path
):
    spec = StudentSpec(model=str(with_code), revision="main", trust_remote_code=True)
    student.body(bench, spec, chain_sum, asked, 0)
    model = load_model(bench.out)
    assert type(model).__name__ == "Own"
    trained = tmp_path / "trained"
    save(model, load_tokenizer(bench.out), trained)
    assert type(load_model(trained)).__name__ == "Own"


def test_pickled_weights_are_refused_unless_the_recipe_takes_them(
    bench: Bench, chain_sum: EnvironmentSpec, asked: Questions, tmp_path: Path
):
    import torch

    student.body(bench, SMALL, chain_sum, asked, 7)
    hub = bench.out.rename(tmp_path / "hub")
    bench.out.mkdir()
    before = load_model(hub)
    torch.save(before.state_dict(), hub / "pytorch_model.bin")
    (hub / "model.safetensors").unlink()
    with pytest.raises(Stop, match="no weights in safetensors"):
        student.body(bench, StudentSpec(model=str(hub), revision="main"), chain_sum, asked, 0)
    student.body(bench, StudentSpec(model=str(hub), revision="main", safetensors_only=False), chain_sum, asked, 0)
    for one, other in zip(before.parameters(), load_model(bench.out).parameters(), strict=True):
        assert torch.equal(one, other)
