"""What a local model generates: its samples do not depend on the batch, and follow its probabilities."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.reasoning_gym.env import Settings
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.players.local_model import LocalModel
from apprentice.tasks.players.protocols import PROTOCOLS
from apprentice.tasks.settings.spec import EvaluateSpec
from tests.tasks.episodes.test_episode import Guess


@pytest.fixture
def local_model(chain_sum: EnvironmentSpec, tmp_path: Path) -> Callable[..., LocalModel]:
    """A tiny model that plays as an evaluation's settings say."""

    def make(seed: int = 0, **settings: Any) -> LocalModel:
        from apprentice.tasks.models.checkpoints import save
        from tests.tasks.test_one_prompt import tiny_model
        from tests.tokenizers import build_tokenizer

        tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
        save(tiny_model(tokenizer, positions=1024), tokenizer, tmp_path)
        return LocalModel(tmp_path, EvaluateSpec(**settings), PROTOCOLS["parity"], seed)

    return make


def test_a_sample_is_the_same_in_whatever_company_it_is_drawn(local_model: Callable[..., LocalModel]):
    """What a batch holds changes nothing, so an evaluation that was interrupted ends as one that was not."""
    model = local_model(decoding="sampled", max_new_tokens=8, samples=2)

    def episode(seed: int, sample: int) -> Episode:
        started = Episode(Player(Guess(Settings(dataset="chain_sum"))), seed)
        started.sample = sample
        return started

    seeds_and_samples = [(1, 0), (1, 1), (2, 0), (3, 0)]
    one_batch, alone = ([episode(*each) for each in seeds_and_samples] for _ in range(2))
    together = model.reply(one_batch)
    exclusive = [model.reply([each])[0] for each in reversed(alone)]
    assert together == exclusive[::-1]
    tokens = [(each.prompt_tokens, each.completion_tokens) for each in one_batch]
    assert tokens == [(each.prompt_tokens, each.completion_tokens) for each in alone], "padding is not counted"
    assert all(read > 10 and 1 <= wrote <= 8 for read, wrote in tokens)
    assert len({str(message) for message in together}) == len(seeds_and_samples), "samples differ, also of one question"


def test_an_evaluation_in_bf16_rounds_weights_and_cache_and_no_angle_of_a_position(
    local_model: Callable[..., LocalModel],
):
    import torch

    model = local_model(max_new_tokens=4, bf16=True)
    model.reply([Episode(Player(Guess(Settings(dataset="chain_sum"))), seed) for seed in (1, 2)])
    assert {weight.dtype for weight in model._model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in model._model.buffers()} == {torch.float32}
    assert {layer.keys.dtype for layer in model._prefix._layers} == {torch.bfloat16}


def test_samples_follow_the_model_s_probabilities(local_model: Callable[..., LocalModel]):
    """Chi-squared over 4,000 draws from four tokens at temperature 0.5."""
    import torch
    from scipy.stats import chisquare

    model = local_model(seed=7, decoding="sampled", temperature=0.5)
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    episodes: Any = [Named(seed) for seed in range(4000)]
    drawn = model._noise(episodes)(scores.repeat(4000, 1), range(4000)).argmax(dim=1)
    expected = torch.softmax(scores / 0.5, dim=0) * 4000
    assert chisquare(torch.bincount(drawn, minlength=4).numpy(), expected.numpy()).pvalue > 1e-3


class Named:
    """As much of an episode as names its noise."""

    sample = turns = 0

    def __init__(self, seed: int):
        self.seed = seed
