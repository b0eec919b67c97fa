"""GRPO spends nothing on groups with equal rewards, and learns the same."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.curve_signals import ENTROPY_WITH_SIGNAL
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.configuration import is_random
from apprentice.tasks.rollouts.sampling import rows_with_signal, skipping_dead_groups
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

STEPS = 3
GROUP = 4
Reward = Callable[..., list[float | None]]


class Ran(NamedTuple):
    weights: dict[str, Any]
    log: list[dict[str, Any]]
    forwarded: int
    """Rows of all forward passes with a gradient."""


def variety(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    """Differs within the groups of odd questions; one tenth, whose standard deviation is not zero, in the others."""
    letters = [len(set(each[0]["content"])) / 10 for each in completions]
    return [reward if _is_odd(prompt) else 0.1 for prompt, reward in zip(prompts, letters, strict=True)]


def lossy(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    """As `variety`, and every third row was lost."""
    return [None if n % 3 == 0 else each for n, each in enumerate(variety(prompts, completions))]


def all_the_same(completions: list[Any], trainer_state: Any, **_: Any) -> list[float | None]:
    """A step with signals, then none."""
    if trainer_state.global_step == 0:
        return [float(n % 2) for n in range(len(completions))]
    return [1.0] * len(completions)


def length(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    """A second stream, which one environment of a mixture has; the others have None."""
    texts = [each[0]["content"] for each in completions]
    return [len(text) / 10 if _is_odd(prompt) else None for prompt, text in zip(prompts, texts, strict=True)]


def long(*case: Any, id: str | None = None) -> Any:
    """A case for `make test-all`: it trains twice."""
    return pytest.param(*case, marks=pytest.mark.long, id=id)


def _is_odd(prompt: Any) -> bool:
    return int(prompt[-1]["content"].split()[0]) % 2 == 1


@pytest.fixture
def trained(chain_sum: EnvironmentSpec, tmp_path: Path) -> Callable[..., Ran]:
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    rows = [{"prompt": [{"role": "user", "content": f"{n} + 1 ="}]} for n in range(40)]

    def run(
        skip: bool, *rewards: Reward, batch: int = 8, accumulation: int = 2, dropout: float = 0.0, **args: Any
    ) -> Ran:
        set_seed(0)
        model = tiny_model(tokenizer)
        model.config.attention_dropout = dropout
        if args.get("beta"):
            model.save_pretrained(tmp_path)
            model.config._name_or_path = str(tmp_path)  # TRL loads the reference from there
        forwarded = 0

        def note(module: Any, given: Any, named: dict[str, Any]) -> None:
            import torch

            nonlocal forwarded
            if torch.is_grad_enabled():
                forwarded += len(named["input_ids"])

        model.register_forward_pre_hook(note, with_kwargs=True)
        trainer = skipping_dead_groups(GRPOTrainer, GrpoSpec(skip_dead_groups=skip))(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=list(rewards),
            args=GRPOConfig(
                str(tmp_path),
                **{
                    "report_to": "none",
                    "use_cpu": True,
                    "bf16": False,
                    "max_steps": STEPS,
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "learning_rate": 1e-2,
                    "weight_decay": 0.1,
                    "adam_epsilon": 1e-5,
                    "per_device_train_batch_size": batch,
                    "gradient_accumulation_steps": accumulation,
                    "num_generations": GROUP,
                    "max_completion_length": 8,
                    "chat_template_kwargs": TEMPLATE_ARGUMENTS,
                    "disable_tqdm": True,
                    **args,
                },
            ),
        )
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "loss" in entry]
        return Ran({name: tensor.detach() for name, tensor in model.state_dict().items()}, log, forwarded)

    return run


def assert_same(plain: Ran, skipping: Ran) -> None:
    import torch

    assert [entry.get("reward") for entry in plain.log] == [entry.get("reward") for entry in skipping.log]
    losses = [[entry["loss"] for entry in ran.log] for ran in (plain, skipping)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    norms = [[entry["grad_norm"] for entry in ran.log] for ran in (plain, skipping)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3, abs=1e-6)
    assert max(norms[0]) > 1e-3, "nothing was learned: any two trainings would be alike"
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(tensor, skipping.weights[name], rtol=1e-3, atol=1e-4)


ALL = 16 * STEPS
"""Rows that are forwarded without skipping."""


@pytest.mark.parametrize(
    ("loss_type", "batch", "accumulation"),
    [
        ("dapo", 4, 4),
        ("bnpo", 16, 1),
        *(long(each, 4, 4) for each in ("grpo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")),
        long("dapo", 16, 1),
    ],
)
def test_every_loss_moves_the_weights_as_without_skipping(trained, loss_type: str, batch: int, accumulation: int):
    plain, skipping = (
        trained(skip, variety, batch=batch, accumulation=accumulation, loss_type=loss_type) for skip in (False, True)
    )
    assert_same(plain, skipping)
    assert plain.forwarded == ALL
    assert 0 < skipping.forwarded < 0.8 * ALL


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize(
    "rewards",
    [pytest.param((lossy, length), id="both"), long((lossy,), id="lost"), long((variety, length), id="streams")],
)
def test_streams_and_lost_rollouts_move_the_weights_as_without_skipping(trained, rewards, aggregation: str):
    plain, skipping = (trained(skip, *rewards, multi_objective_aggregation=aggregation) for skip in (False, True))
    assert_same(plain, skipping)
    assert 0 < skipping.forwarded < 0.8 * ALL


@pytest.mark.parametrize(
    "args",
    [
        {"num_iterations": 2, "epsilon": 0.01},
        {"scale_rewards": "batch"},
        long({"scale_rewards": "none"}),
        long({"importance_sampling_level": "sequence"}),
        long({"mask_truncated_completions": True, "max_completion_length": 64}),
        long({"pad_to_multiple_of": 6}),
        long({"delta": 1.5}),
    ],
    ids=lambda args: next(iter(args)),
)
def test_trls_other_settings_move_the_weights_as_without_skipping(trained, args: dict[str, Any]):
    plain, skipping = (trained(skip, variety, **args) for skip in (False, True))
    assert_same(plain, skipping)
    assert 0 < skipping.forwarded < 0.8 * ALL


def test_a_step_without_any_signal_does_what_weight_decay_and_momentum_do(trained):
    """Not nothing: TRL's gradient is zero there, not missing."""
    plain, skipping = (trained(skip, all_the_same) for skip in (False, True))
    assert_same(plain, skipping)
    assert skipping.forwarded == 16, "the first step's"
    assert [entry["grad_norm"] for entry in skipping.log[1:]] == [0.0] * (STEPS - 1)


@pytest.mark.parametrize(
    "args",
    [
        {"beta": 0.04},
        {"dropout": 0.1},
        {"neftune_noise_alpha": 5.0},
        long({"entropy_coef": 0.01}),
        long({"use_adaptive_entropy": True}),
        long({"top_entropy_quantile": 0.5}),
    ],
    ids=lambda args: next(iter(args)),
)
def test_nothing_is_skipped_where_a_group_without_advantage_changes_the_weights(trained, args: dict[str, Any]):
    ran = trained(True, variety, **args)
    assert ran.forwarded == ALL
    assert all("entropy" in entry and ENTROPY_WITH_SIGNAL not in entry for entry in ran.log)


def test_metrics_are_named_for_the_completions_that_they_cover(trained):
    plain, skipping = (trained(skip, variety, batch=16, accumulation=1) for skip in (False, True))
    covered = {name for entry in skipping.log for name in entry if name.startswith("with_signal/")}
    assert {ENTROPY_WITH_SIGNAL, "with_signal/clip_ratio/region_mean", "with_signal/share"} <= covered
    assert {name.removeprefix("with_signal/") for name in covered} - {"share"} == {
        name for name in plain.log[0] if name == "entropy" or name.startswith("clip_ratio/")
    }
    assert not {"entropy", "clip_ratio/region_mean"} & skipping.log[0].keys()
    shares = [entry["with_signal/share"] for entry in skipping.log]
    assert sum(shares) / STEPS == pytest.approx(skipping.forwarded / ALL)


def test_the_entropy_is_that_of_the_groups_with_signal_and_missing_where_there_are_none(trained):
    steps = trained(True, all_the_same, batch=16, accumulation=1).log
    whole = trained(False, all_the_same, batch=16, accumulation=1).log
    assert steps[0][ENTROPY_WITH_SIGNAL] == pytest.approx(whole[0]["entropy"], rel=1e-5)
    assert all(ENTROPY_WITH_SIGNAL not in step for step in steps[1:])


@pytest.mark.parametrize(
    ("rewards", "signals"),
    [
        ([0.1] * 8, [False] * 8),
        ([0.1, 0.1, 0.1, 0.10000001, 0.1, 0.1, 0.1, 0.1], [True] * 4 + [False] * 4),
        ([None, 1.0, 1.0, 1.0, None, 1.0, 0.0, 1.0], [False] * 5 + [True] * 3),
        ([None] * 4 + [None, None, None, 1.0], [False] * 8),
        ([-1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [True] * 4 + [False] * 4),
    ],
)
def test_a_group_is_dead_where_all_its_rewards_are_equal_and_a_lost_row_says_nothing(rewards, signals):
    import torch

    given = torch.tensor([[float("nan") if reward is None else reward] for reward in rewards])
    assert rows_with_signal(given, GROUP).tolist() == signals


def test_streams_that_only_some_rows_have_are_compared_each_on_its_own():
    import torch

    nan = float("nan")
    given = torch.tensor(
        [[1.0, nan], [1.0, nan], [nan, 0.5], [nan, 0.5], [1.0, nan], [1.0, nan], [nan, 0.5], [nan, 0.4]]
    )
    assert rows_with_signal(given, GROUP).tolist() == [False] * 4 + [True] * 4


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_without_a_module_is_found(dropout: float):
    from transformers import OPTConfig, OPTForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16, "num_attention_heads": 2}
    model = OPTForCausalLM(OPTConfig(vocab_size=32, num_hidden_layers=1, dropout=dropout, **sizes))
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(neftune_noise_alpha=None))
    assert is_random(trainer) == (dropout > 0.0)
