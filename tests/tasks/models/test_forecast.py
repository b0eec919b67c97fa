"""Stages are predicted from a layer of the model's own shape, and grow with what they compute."""

from typing import Any

import pytest

from apprentice.envs.base import tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models.forecast import Lengths, Pace, Shape, of_answers, of_grpo, of_sft, pace_of, told
from apprentice.tasks.models.tokenizer import build_tokenizer
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import GrpoSpec, SftSpec

PACE = Pace(train=1e-3, saved=100.0, call=2e-3, row=1e-4, head=1e-4, update=1e-8)
SHAPE = Shape(layers=10, weights=1_000_000)
LENGTHS = Lengths(shared=200, question=10, completion=20, row=260)
UPDATE = 0.01
"""Seconds of the optimizer's step for all weights."""


def sft(**given: Any) -> SftSpec:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 10, "gradient_accumulation": 1}
    return SftSpec(**(settings | given))


@pytest.mark.parametrize(
    ("spec", "batches", "tokens"),
    [
        pytest.param(sft(), 10, 200 + 10 * 60, id="what rows begin with once"),
        pytest.param(sft(share_prompts=False), 10, 10 * 260, id="whole rows"),
        pytest.param(sft(epochs=3), 30, 800, id="epochs"),
        pytest.param(sft(max_rows=20), 2, 800, id="some rows"),
        pytest.param(sft(held_out=0.5), 5, 800, id="rows held out"),
    ],
)
def test_sft_takes_its_batches_and_what_a_batch_computes(spec: SftSpec, batches: int, tokens: int):
    found = of_sft(spec, 100, LENGTHS, SHAPE, PACE)
    assert found.seconds == pytest.approx(batches * (10 * tokens * 1e-3 + 200 * 1e-4 + UPDATE))
    assert found.bytes == pytest.approx(1.2e9 + 16e6 + 10 * tokens * 100)


def test_accumulated_batches_take_one_update_and_the_memory_of_one():
    whole, parts = (
        of_sft(sft(batch_size=size, gradient_accumulation=20 // size), 100, LENGTHS, SHAPE, PACE) for size in (20, 5)
    )
    assert parts.bytes < whole.bytes
    assert parts.seconds == pytest.approx(20 * (10 * 500 * 1e-3 + 100 * 1e-4) + 5 * UPDATE)


def grpo(**given: Any) -> GrpoSpec:
    settings: dict[str, Any] = {"max_steps": 7, "batch_size": 16, "gradient_accumulation": 1, "num_generations": 8}
    return GrpoSpec(**(settings | given))


SAYING = 16 * 10 * 10 * 1e-3 / 3 + 20 * (10 * (2e-3 + 16 * 1e-4) + 16 * 1e-4 / 3)
"""Seconds in which 16 rollouts are generated."""


@pytest.mark.parametrize(
    ("spec", "tokens", "asked"),
    [
        pytest.param(grpo(), 200 + 2 * 30 + 14 * 10, 1, id="groups as trees"),
        pytest.param(grpo(share_prompts=False), 16 * 230, 1, id="whole rows"),
        pytest.param(grpo(oversample=3.0), 400, 3, id="further questions"),
    ],
)
def test_grpo_takes_its_rollouts_and_its_updates(spec: GrpoSpec, tokens: int, asked: int):
    found = of_grpo(spec, LENGTHS, SHAPE, PACE)
    assert found.seconds == pytest.approx(7 * (10 * tokens * 1e-3 + 320 * 1e-4 + UPDATE + asked * SAYING))
    assert found.bytes == pytest.approx(1.2e9 + 16e6 + 10 * tokens * 100)


def test_an_evaluation_takes_its_batches():
    found = of_answers(EvaluateSpec(questions=100, batch_size=16), LENGTHS, SHAPE, PACE)
    assert found == pytest.approx(7 * SAYING)


def test_gradient_checkpointing_keeps_the_states_of_one_layer():
    kept = of_sft(sft(gradient_checkpointing=True), 100, LENGTHS, SHAPE, PACE)
    assert kept.bytes == pytest.approx(1.2e9 + 16e6 + 800 * 100)


def test_texts_are_measured_by_an_example(chain_sum: EnvironmentSpec):
    tokenizer, environment = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="]), chain_sum.make()
    called = {"name": "answer", "arguments": {"answer": "12"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
    questions = ["1 + 1 =", "22 + 2 ="]
    found = Lengths.of(tokenizer, environment, questions, turn)
    prompts = [prompt_ids(tokenizer, prompt(environment, each), tool_schemas(environment)) for each in questions]
    assert prompts[0][: found.shared] == prompts[1][: found.shared]
    assert prompts[0][found.shared] != prompts[1][found.shared]
    assert found.shared + found.question == len(prompts[1]), "the longer one"
    assert found.completion >= 3, "the call, its argument of two digits, an end"
    assert found.row > len(prompts[0]) + found.completion, "the reply and the closing turn"


def test_a_wider_layer_is_measured_to_be_slower_and_larger(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    from transformers import Qwen3Config

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "head_dim": 16}
    narrow, wide = (
        pace_of(Qwen3Config(hidden_size=size, intermediate_size=2 * size, num_hidden_layers=9, **heads), bf16=False)
        for size in (32, 512)
    )
    assert wide.train > 2 * narrow.train > 0
    assert wide.saved > 2 * narrow.saved > 0
    assert wide.head > narrow.head > 0
    assert min(wide.call + 64 * wide.row, wide.update) > 0
    again = pace_of(Qwen3Config(hidden_size=512, intermediate_size=1024, num_hidden_layers=9, **heads), bf16=False)
    assert again == wide, "measured once"


def test_it_is_told_in_one_line():
    found = [("SFT", 65.0, 3.21e9), ("GRPO", 1200.0, None), ("3,000 answers", 9000.0, None)]
    assert told(found) == "Predicted for this machine: SFT 65 s and 3.2 GB, GRPO 20 min, 3,000 answers 2.5 h."
