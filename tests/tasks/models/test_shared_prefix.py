"""What all prompts begin with is computed once, and nobody's text changes by it."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from apprentice.tasks.models import shared_prefix
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.protocols import Parity
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.conftest import TASKS
from tests.tokenizers import build_tokenizer

TOKENS = 12
PREFIX = [5 + 7 * n % 50 for n in range(40)]
"""What every prompt begins with: instructions and tools."""
OWN = [[9, 30, 2], [9, 31], [9, 12, 13, 14, 15, 16, 17], [9, 33, 40], [9]]
"""What follows in each prompt, of different lengths; the first token is common, too."""


@dataclass
class PromptedEpisode:
    """As much of an episode as a prompt and its noise need."""

    seed: int
    ids: list[int]
    turns: int = 0
    sample: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tools: tuple[Any, ...] = ()


class Ids(Parity):
    """Prompts and texts are token ids."""

    def prompt_ids(self, tokenizer: Any, episode: Any) -> list[int]:
        return episode.ids

    def read(self, tokenizer: Any, ids: list[int], prefix: list[int], episode: Any) -> Any:
        return ids


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("model"))


def written(to: Path, **config: Any) -> Path:
    """A model with two query heads for each key, whose texts differ from prompt to prompt."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer(TASKS["chain_sum"], ["1 + 1 =", "2 + 2 ="])
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **config,
        )
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj." in name:
                weight.mul_(20.0)
    save(model, tokenizer, to)
    return to


def player(checkpoint: Path, decoding: Any = "greedy") -> LocalModel:
    return LocalModel(checkpoint, EvaluateSpec(decoding=decoding, max_new_tokens=TOKENS), Ids(), seed=3)


def prompted_episodes(prefix: list[int] = PREFIX) -> list[Any]:
    return [PromptedEpisode(seed, prefix + own) for seed, own in enumerate(OWN)]


def continued(episodes: list[Any], replies: list[Any]) -> list[Any]:
    """The next turn: each prompt goes on with what was said and what was answered."""
    turns = zip(episodes, replies, strict=True)
    return [PromptedEpisode(each.seed, each.ids + said + [20 + each.seed], each.turns + 1) for each, said in turns]


@pytest.fixture
def separately(monkeypatch):
    """Texts of the same batches where every row has a prefix of its own."""

    def played(checkpoint: Path, batches: list[list[Any]], decoding: str = "greedy") -> list[Any]:
        with monkeypatch.context() as patched:
            patched.setattr(shared_prefix, "SHORTEST", 10**6)
            model = player(checkpoint, decoding)
            return [model.reply(batch) for batch in batches]

    return played


@pytest.mark.parametrize("decoding", ["greedy", "sampled"])
def test_the_texts_of_several_turns_are_those_without_a_shared_prefix(checkpoint, separately, decoding):
    model = player(checkpoint, decoding)
    first = prompted_episodes()
    replies = [model.reply(first)]
    second = continued(first, replies[0])[1:]  # the first episode has ended
    replies.append(model.reply(second))
    third = continued(second, replies[1])
    replies.append(model.reply(third))
    assert replies == separately(checkpoint, [first, second, third], decoding)
    assert model._prefix._ids[: len(PREFIX)] == PREFIX, "shared"
    assert len({str(text) for text in replies[0]}) == len(OWN), "texts differ, so that a mix-up would show"


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_text_is_the_same_with_fewer_sessions_than_a_batch_holds(checkpoint, separately, sessions):
    model, episodes = player(checkpoint, "sampled"), prompted_episodes()
    batches = [episodes[place : place + sessions] for place in range(0, len(episodes), sessions)]
    together = separately(checkpoint, [episodes], "sampled")[0]
    assert [text for batch in batches for text in model.reply(batch)] == together


def test_a_batch_that_begins_otherwise_is_not_given_the_last_ones_beginning(checkpoint, separately):
    model, batches = player(checkpoint), [prompted_episodes(), prompted_episodes([token + 1 for token in PREFIX])]
    assert [model.reply(batch) for batch in batches] == separately(checkpoint, batches)


def test_what_all_have_in_common_is_computed_once(checkpoint, monkeypatch):
    model = player(checkpoint)
    computed: list[int] = []
    compute = model._prefix._compute
    monkeypatch.setattr(model._prefix, "_compute", lambda ids: (computed.append(len(ids)), compute(ids)))
    for batch in (
        prompted_episodes()[:2],
        prompted_episodes()[2:4],
        prompted_episodes()[:1],
        prompted_episodes(),
        prompted_episodes(PREFIX[:35]),
    ):
        model.reply(batch)
    assert computed == [len(PREFIX) + 1], "later batches have as much in common or less"


def test_a_row_keeps_only_what_follows_the_prefix(checkpoint, monkeypatch):
    model, caches = player(checkpoint), []
    make = model._prefix.cache
    monkeypatch.setattr(model._prefix, "cache", lambda *given: caches.append(make(*given)) or caches[-1])
    model.reply(prompted_episodes())
    longest = max(map(len, OWN))
    (cache,) = caches
    # the last prompt is all in common, but its last token is left to be computed
    (shape,) = {layer.keys.shape for layer in cache.layers}
    assert shape[0] <= len(OWN)
    assert shape[1:] == (2, longest + TOKENS, 8)
    assert {layer.prefix[0].shape for layer in cache.layers} == {(1, 2, len(PREFIX), 8)}


def test_prompts_with_little_in_common_are_computed_each(checkpoint):
    model = player(checkpoint)
    model.reply(prompted_episodes(PREFIX[: shared_prefix.SHORTEST - 1]))
    assert model._prefix._ids == []


def test_a_model_that_does_something_else_with_keys_gets_them_whole(checkpoint, separately, monkeypatch):
    class Copied(shared_prefix._Layer):
        def update(self, *given: Any, **kwargs: Any) -> tuple[Any, Any]:
            keys, values = super().update(*given, **kwargs)
            return keys.clone(), values.clone()

    monkeypatch.setattr(shared_prefix, "_Layer", Copied)
    assert [player(checkpoint).reply(prompted_episodes())] == separately(checkpoint, [prompted_episodes()])


@pytest.mark.parametrize(
    "config",
    [
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ],
    ids=["sliding window", "positions scaled by length"],
)
def test_a_model_whose_prefix_cannot_be_shared_answers_without(tmp_path, separately, config):
    written(tmp_path, **config)
    model = player(tmp_path)
    assert model._prefix.cache([each.ids for each in prompted_episodes()], TOKENS) is None
    assert [model.reply(prompted_episodes())] == separately(tmp_path, [prompted_episodes()])


def test_adapters_beside_the_weights_are_part_of_the_prefix(checkpoint):
    import torch
    from peft import LoraConfig

    texts = []
    for possible in (True, False):
        model = player(checkpoint)
        torch.manual_seed(1)
        model._model.add_adapter(LoraConfig(r=2, target_modules=["k_proj", "v_proj"], init_lora_weights=False))
        model._prefix._possible &= possible
        texts.append(model.reply(prompted_episodes()))
    assert texts[0] == texts[1]
    assert texts[0] != player(checkpoint).reply(prompted_episodes())


def with_settings(to: Path, **settings: Any) -> Path:
    """A checkpoint that names these settings of `generate`."""
    file = written(to) / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return to


@pytest.mark.parametrize(
    "setting",
    [
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"num_beams": 3},
        {"min_new_tokens": TOKENS},
        {"do_sample": True, "temperature": 0.6, "top_k": 20},
        {"do_sample": False, "temperature": 0.6, "top_p": 0.9},  # transformers refuses to save this
    ],
)
def test_a_checkpoints_own_settings_reach_no_answer_as_in_grpo(tmp_path, checkpoint, setting: dict[str, Any]):
    named = with_settings(tmp_path, **setting)
    assert player(named).reply(prompted_episodes()) == player(checkpoint).reply(prompted_episodes())
    load_model(named).save_pretrained(tmp_path / "again")
    assert not set(setting) & set(json.loads((tmp_path / "again/generation_config.json").read_text()))


def test_what_was_written_ends_with_its_end_and_counts_in_every_turn(checkpoint):
    model, episodes = player(checkpoint), prompted_episodes()
    turns: list[Any] = [model.reply(episodes), model.reply(episodes)]
    (end,) = model._ends
    written_ids = turns[0]
    assert {len(ids) < TOKENS for ids in written_ids} == {True, False}, "some end early, and are padded in the batch"
    assert all(end not in ids[:-1] and (ids[-1] == end or len(ids) == TOKENS) for ids in written_ids)
    assert [each.completion_tokens for each in episodes] == [sum(map(len, ids)) for ids in zip(*turns, strict=True)]
    assert [each.prompt_tokens for each in episodes] == [2 * len(each.ids) for each in episodes]


@pytest.mark.parametrize(
    ("heads", "limits"),
    [
        pytest.param(3, {}, id="keys of its own"),
        pytest.param(9, {}, id="three share keys"),
        pytest.param(9, {"CACHED": 1}, id="row by row"),
        pytest.param(9, {"CACHED": 1, "FEW": 9 * 7 * 40}, id="computed again in the backward pass"),
    ],
)
def test_gradients_by_products_are_those_of_sdpa_up_to_bf16(
    heads: int, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    """Measured against fp32, where SDPA's own error in bf16 is the scale; a row of padding sees nothing."""
    for name, value in limits.items():
        monkeypatch.setattr(shared_prefix, name, value)
    torch.manual_seed(0)
    shapes = (2, heads, 7, 16), (2, 3, 40, 16), (2, 3, 40, 16)
    exact = [torch.randn(shape, requires_grad=True) for shape in shapes]
    mask = torch.rand(2, 1, 7, 40) < 0.7
    mask[1, :, 0] = False
    module = SimpleNamespace(num_key_value_groups=heads // 3, is_causal=True)

    def gradients(attend: Any, *given: Any) -> list[Any]:
        out = attend(*given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        seen = mask.any(dim=-1).transpose(1, 2).unsqueeze(-1)  # (rows, queries, 1, 1)
        return [out * seen, *torch.autograd.grad((out.float() * seen).square().sum(), given[1:4])]

    def rounded() -> list[Any]:
        return [each.detach().bfloat16().requires_grad_() for each in exact]

    wanted = gradients(sdpa_attention_forward, module, *exact, mask)
    own = gradients(sdpa_attention_forward, module, *rounded(), mask)
    given = rounded()
    found = gradients(shared_prefix._attend, module, *given, mask)
    for right, theirs, ours in zip(wanted, own, found, strict=True):
        error = (ours.float() - right).norm() / right.norm()
        assert error < 2 * (theirs.float() - right).norm() / right.norm() + 1e-3
        assert ours.isfinite().all()


def test_gradients_are_computed_by_products_in_bf16_alone_and_where_few_scores_are_kept(monkeypatch):
    query, key = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16, requires_grad=True), torch.zeros(1, 2, 6, 8)
    mask, quicker = torch.ones(1, 1, 4, 6, dtype=torch.bool), shared_prefix._is_quicker_by_products
    assert quicker(query, key, mask, {})
    assert not quicker(query.float(), key, mask, {})
    with torch.autocast("cpu", torch.bfloat16):
        assert quicker(query.float(), key, mask, {}), "which computes in bf16"
    assert not quicker(query.detach(), key, mask, {})
    assert not quicker(query, key, None, {})
    assert not quicker(query, key, mask, {"dropout": 0.1})
    monkeypatch.setattr(shared_prefix, "FEW", 47)
    assert not quicker(query, key, mask, {}), "2 heads × 4 × 6 scores a row"
