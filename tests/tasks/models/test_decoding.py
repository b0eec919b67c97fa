"""Completions have the model's distribution, though equal prompts are computed once and rows leave a batch early."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from apprentice.tasks.models.decoding import drawn
from apprentice.tasks.training.shared_prompts import generate_shared

TOOLS = list(range(1, 41))
"""Tokens that all prompts begin with."""
ENDS, PADS, VOCABULARY = 5, 0, 60
SETTINGS: dict[str, Any] = {"eos_token_id": ENDS, "pad_token_id": PADS}


@pytest.fixture
def model() -> Any:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, initializer_range=0.4, **sizes, **heads)).eval()


def generated(model: Any, questions: list[list[int]], fast: bool, **settings: Any) -> list[list[int]]:
    prompts = [TOOLS + question for question in questions]
    width = max(map(len, prompts))
    ids = torch.tensor([[PADS] * (width - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    config = GenerationConfig(**(SETTINGS | {"max_new_tokens": 12, "do_sample": True} | settings))
    with generate_shared(model, prompts, fast=fast):
        return model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()


DIFFERENT = [[41, 42], [43], [44, 45, 46], [47]]


@pytest.mark.parametrize("questions", [DIFFERENT, [[41]] * 3, [each for each in DIFFERENT for _ in range(3)]])
@pytest.mark.parametrize("settings", [{"top_k": 1}, {"do_sample": False}, {"do_sample": False, "num_beams": 2}])
def test_the_likeliest_tokens_are_those_of_transformers(model: Any, questions: list[list[int]], settings: Any):
    given = {"eos_token_id": [ENDS, 22, 38], **settings}
    plain = generated(model, questions, fast=False, **given)
    assert generated(model, questions, fast=True, **given) == plain
    assert len(set(map(str, plain))) == len(set(map(str, questions))), "a mix-up of rows would not show"


def test_samples_are_as_frequent_as_those_of_transformers(model: Any):
    """The first two tokens of 6,000 completions of one prompt and of 6,000 of another."""
    questions = [[41]] * 6000 + [[42, 43]] * 6000
    torch.manual_seed(0)
    sides = [generated(model, questions, fast=fast, max_new_tokens=2, temperature=1.3) for fast in (False, True)]
    for rows in (slice(0, 6000), slice(6000, None)):
        counts = [torch.zeros(VOCABULARY, VOCABULARY), torch.zeros(VOCABULARY, VOCABULARY)]
        for count, said in zip(counts, sides, strict=True):
            for first, *second in said[rows]:
                count[first, second[0] if second else PADS] += 1
        common = counts[0] + counts[1] >= 40
        plain, fast = counts[0][common], counts[1][common]
        assert len(plain) > 20
        chi_squared = float(((plain - fast) ** 2 / (plain + fast)).sum())
        assert chi_squared < len(plain) + 4 * (2 * len(plain)) ** 0.5, "four standard deviations"


def test_equal_prompts_are_computed_once_and_rows_that_ended_leave(model: Any):
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, __, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    torch.manual_seed(1)
    said = generated(model, [each for each in DIFFERENT for _ in range(8)], fast=True, eos_token_id=list(range(5, 25)))
    assert rows[0] == len(DIFFERENT), "a row of each group; what all begin with is no pass of the whole model"
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert rows[-1] < 32 / 2
    lengths = [len([token for token in each if token != PADS]) for each in said]
    assert sum(rows[1:]) <= sum(lengths) * 8 / 7, "an eighth of a batch at most has ended"


def test_a_token_is_drawn_by_its_probability_and_never_one_without():
    torch.manual_seed(0)
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]]).repeat(20_000, 1)
    counts = drawn(probabilities).bincount(minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    assert (counts / 20_000).tolist() == pytest.approx([0.0, 0.5, 0.0, 0.3, 0.2, 0.0], abs=0.015)


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_the_ends_of_the_range_draw_tokens_with_a_probability(monkeypatch: pytest.MonkeyPatch, number: float):
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, number))
    assert drawn(torch.tensor([[0.0, 0.4, 0.6, 0.0]])).tolist() == [1 if number == 0.0 else 2]
