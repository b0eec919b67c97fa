"""Completions have the model's distribution, though each token is computed once and rows leave a batch early."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from apprentice.tasks.episodes.drafts import Drafts
from apprentice.tasks.models.decoding import as_transformers, by_one_number, decode, drawn
from apprentice.tasks.models.shared_prefix import SharedPrefix
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


def of_transformers(model: Any, questions: list[list[int]], **settings: Any) -> list[list[int]]:
    return _generated(model, [TOOLS + question for question in questions], **settings)


def _generated(model: Any, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
    places: dict[tuple[int, ...], int] = {}
    of = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    width = max(map(len, places))
    ids = torch.tensor([[PADS] * (width - len(each)) + [*each] for each in places])[of]
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in places])[of]
    config = GenerationConfig(**(SETTINGS | {"max_new_tokens": 12, "do_sample": True} | settings))
    return model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()


def generated(
    model: Any, questions: list[list[int]], fast: bool, draft: Any = None, **settings: Any
) -> list[list[int]]:
    prompts = [TOOLS + question for question in questions]
    with generate_shared(model, prompts, by_one_number if fast else as_transformers, draft):
        return _generated(model, prompts, **settings)


DIFFERENT = [[41, 42], [43], [44, 45, 46], [47]]


GROUPS = [each for each in DIFFERENT for _ in range(3)]


@pytest.fixture
def passes(model: Any) -> list[int]:
    """How many rows each forward pass of the whole model had."""
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, __, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    return rows


@pytest.mark.parametrize("questions", [DIFFERENT, [[41]] * 3, GROUPS])
@pytest.mark.parametrize("settings", [{"top_k": 1}, {"do_sample": False}, {"do_sample": False, "num_beams": 2}])
def test_the_likeliest_tokens_are_those_of_transformers(model: Any, questions: list[list[int]], settings: Any):
    given = {"eos_token_id": [ENDS, 22, 38], **settings}
    plain = of_transformers(model, questions, **given)
    assert generated(model, questions, fast=False, **given) == plain
    assert generated(model, questions, fast=True, **given) == plain
    assert len(set(map(str, plain))) == len(set(map(str, questions))), "a mix-up of rows would not show"


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("questions", [DIFFERENT, [[41]], [[41]] * 32, [each for each in DIFFERENT for _ in range(8)]])
def test_in_fp32_the_samples_are_those_of_transformers(model: Any, questions: list[list[int]], temperature: float):
    given = {"eos_token_id": [ENDS, 22, 38], "temperature": temperature, "top_k": 0}
    torch.manual_seed(5)
    plain = of_transformers(model, questions, **given)
    torch.manual_seed(5)
    assert generated(model, questions, fast=False, **given) == plain


def test_a_row_is_drawn_by_its_own_numbers_whatever_is_beside_it(model: Any):
    questions = [each for each in DIFFERENT for _ in range(6)]
    numbers = torch.rand(12, len(questions), 1, generator=torch.Generator().manual_seed(2))

    def said(which: list[int]) -> list[list[int]]:
        def draw(scores: Any, branch: Any, rows: Any, lengths: Any, _: int) -> Any:
            return drawn((scores / 0.5).softmax(dim=-1), branch, numbers[:, which][lengths, rows])

        prompts = [TOOLS + questions[place] for place in which]
        cache = SharedPrefix(model, GenerationConfig(**SETTINGS)).cache(prompts, 12)
        assert cache is not None
        known, width = cache.get_seq_length(), max(map(len, prompts))
        ids = torch.tensor([[PADS] * (width - len(each)) + each for each in (row[known:] for row in prompts)])
        mask = torch.nn.functional.pad((ids != PADS).long(), (known, 0), value=1)
        config = GenerationConfig(**SETTINGS | {"max_new_tokens": 12, "eos_token_id": [ENDS, 22, 38]})
        given: dict[str, Any] = {"past_key_values": cache, "custom_generate": decode, "draw": draw}
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config, **given)
        return [[token for token in row if token != PADS] for row in out[:, ids.shape[1] :].tolist()]

    together = said(list(range(len(questions))))
    assert together == [said([place])[0] for place in range(len(questions))]
    assert len(set(map(str, together))) > len(DIFFERENT), "rows of a group differ"


@pytest.mark.parametrize("fast", [False, True])
def test_each_token_is_computed_once_for_all_rows_that_are_alike_so_far(model: Any, passes: list[int], fast: bool):
    questions = [[41]] * 40 + [[42, 43]] * 40
    torch.manual_seed(1)
    said = generated(model, questions, fast=fast, max_new_tokens=8, temperature=0.2, eos_token_id=VOCABULARY)
    alike = [
        len({str((question, row[:length])) for question, row in zip(questions, said, strict=True)})
        for length in range(8)
    ]
    assert passes == alike
    assert sum(alike) < 80 * 8 / 2, "or the test shows nothing"


def test_replies_that_are_equal_keep_rows_together_over_turns(model: Any, passes: list[int]):
    torch.manual_seed(1)
    first = generated(model, [[41]] * 20, fast=True, max_new_tokens=3, temperature=0.4)
    passes.clear()
    generated(model, [[41, *said, 50, 51] for said in first], fast=True, max_new_tokens=3)
    assert passes[0] == len(set(map(str, first))) < 20


@pytest.mark.parametrize("ends", [[VOCABULARY], [ENDS, 22, 38]])
@pytest.mark.parametrize("questions", [[[41]] * 8, DIFFERENT, [each for each in DIFFERENT for _ in range(8)]])
def test_drafts_change_no_completion_and_save_passes(
    model: Any, passes: list[int], questions: list[list[int]], ends: list[int]
):
    given: dict[str, Any] = {"fast": False, "temperature": 0.25, "eos_token_id": ends}

    def said(draft: Any = None) -> list[list[int]]:
        torch.manual_seed(7)
        passes.clear()
        return generated(model, questions, draft=draft, **given)

    plain, without = said(), len(passes)
    told = [*zip(questions, plain, strict=True)]
    of_rows = [[[*TOOLS, *question, *row]] for question, row in told]
    assert said(Drafts(of_rows).after) == plain
    splits = len(questions) > 8  # at every token, where nothing is certain
    assert len(passes) < without + splits
    wrong = Drafts([[[*TOOLS, *question, *range(30, 42)]] for question in questions])
    assert said(wrong.after) == plain
    assert said(lambda tail, most: [1] * most) == plain
    uneven = [[[*TOOLS, *question, *row[: 2 + place % 7], 1, 2, 3]] for place, (question, row) in enumerate(told)]
    assert said(Drafts(uneven).after) == plain, "rows leave their drafts at several places"
    assert of_transformers_with_seed(model, questions, 7, **given) == plain


def test_a_row_that_leaves_its_draft_goes_on_alone(model: Any, passes: list[int]):
    given: dict[str, Any] = {"do_sample": False, "eos_token_id": VOCABULARY}
    plain = of_transformers(model, DIFFERENT, **given)
    passes.clear()
    right = {question[-1]: row for question, row in zip(DIFFERENT[:3], plain, strict=False)}

    def draft(tail: list[int], most: int) -> list[int]:
        return right.get(tail[-1], [1] * most)[:most]

    assert generated(model, DIFFERENT, fast=True, draft=draft, **given) == plain
    assert passes == [4, *[1] * 11], "the others end in the first pass"


def test_a_draft_begins_with_the_row_s_own_last_tokens_whatever_was_left_out_of_others(model: Any):
    tails = set[tuple[int, ...]]()

    def draft(tail: list[int], most: int) -> list[int]:
        tails.add(tuple(tail))
        return [1, 2, *tail[:2]][:most] if sum(tail) % 2 else []

    said = generated(model, GROUPS, fast=True, draft=draft, eos_token_id=VOCABULARY, temperature=0.7)
    whole = [[*question, *row] for question, row in zip(GROUPS, said, strict=True)]
    assert tails <= {tuple(row[max(end - 8, 0) : end]) for row in whole for end in range(1, len(row))}


@pytest.mark.parametrize(("drafted", "columns"), [(1, 1), (50, 4)])
def test_a_pass_is_as_long_as_saves_more_than_the_padding_of_the_others(model: Any, drafted: int, columns: int):
    """Of 50 rows one has a draft of three tokens, or each of them."""
    computed = list[int]()
    model.register_forward_pre_hook(lambda _, __, named: computed.append(named["input_ids"].shape[1]), with_kwargs=True)
    questions = [[first] for first in range(6, 56)]
    known = {first for (first,) in questions[:drafted]}
    generated(model, questions, True, lambda tail, _: [30, 31, 32] if {*tail} <= known else [], max_new_tokens=8)
    assert computed[0] == columns, "what all begin with is no pass of the whole model"


def test_nothing_is_drafted_beyond_a_token_that_ends(model: Any):
    computed = list[int]()
    model.register_forward_pre_hook(lambda _, __, named: computed.append(named["input_ids"].shape[1]), with_kwargs=True)
    generated(model, [[41], [42]], fast=True, draft=lambda _, most: [30, ENDS, 31, 32][:most], max_new_tokens=8)
    assert max(computed) == 1 + 2, "the last token, and two that are drafted"


def of_transformers_with_seed(model: Any, questions: list[list[int]], seed: int, fast: bool, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return of_transformers(model, questions, **settings)


@pytest.mark.long
@pytest.mark.parametrize("fast", [False, True])
def test_answers_are_as_frequent_as_their_probability(model: Any, fast: bool):
    """All answers of two tokens to two prompts, 50,000 times each, against the model's own probabilities."""
    questions = [[41]] * 50_000 + [[42, 43]] * 50_000
    torch.manual_seed(0)
    said = generated(model, questions, fast=fast, max_new_tokens=2, temperature=1.3, top_k=0)
    for begin in (0, 50_000):
        expected = 50_000 * probabilities_of_two(model, TOOLS + questions[begin], 1.3)
        counted = torch.zeros(VOCABULARY, VOCABULARY)
        for first, *second in said[begin : begin + 50_000]:
            counted[first, second[0] if second else PADS] += 1
        common = expected >= 20
        (chi_squared,) = ((counted - expected)[common] ** 2 / expected[common]).sum().unsqueeze(0).tolist()
        freedom = int(common.sum())
        assert freedom > 50
        assert chi_squared < freedom + 4 * (2 * freedom) ** 0.5, "four standard deviations"


@torch.no_grad()
def probabilities_of_two(model: Any, prompt: list[int], temperature: float) -> Any:
    """(vocabulary, vocabulary): of each answer of two tokens, by whole passes of the plain model."""
    of_first = (model(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(dim=-1)
    rows = torch.tensor([[*prompt, token] for token in range(VOCABULARY)])
    both = of_first.unsqueeze(1) * (model(rows).logits[:, -1] / temperature).softmax(dim=-1)
    both[ENDS] = torch.zeros(VOCABULARY).index_fill(0, torch.tensor(PADS), float(of_first[ENDS]))
    return both


def test_branches_that_ended_leave(model: Any, passes: list[int]):
    torch.manual_seed(1)
    said = generated(model, [each for each in DIFFERENT for _ in range(8)], fast=True, eos_token_id=list(range(5, 25)))
    assert passes[0] == len(DIFFERENT), "a row of each group; what all begin with is no pass of the whole model"
    assert passes[-1] < max(passes) / 2
    lengths = [len([token for token in each if token != PADS]) for each in said]
    assert sum(passes[1:]) <= sum(lengths) * 8 / 7, "an eighth of a batch at most has ended"


def test_a_token_is_drawn_by_its_probability_and_never_one_without():
    torch.manual_seed(0)
    probabilities, rows = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]]), 20_000
    counts = drawn(probabilities, torch.zeros(rows, dtype=torch.long), torch.rand(rows, 1)).bincount(minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    assert (counts / rows).tolist() == pytest.approx([0.0, 0.5, 0.0, 0.3, 0.2, 0.0], abs=0.015)


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1.0, 2)])
def test_the_ends_of_the_range_draw_tokens_with_a_probability(number: float, token: int):
    of_first = torch.zeros(1, dtype=torch.long)
    assert drawn(torch.tensor([[0.0, 0.4, 0.6, 0.0]]), of_first, torch.full((1, 1), number)).tolist() == [token]
