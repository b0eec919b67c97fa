"""SFT computes what the rows of a batch begin with once, and learns the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.tasks.episodes.rendering import IGNORED
from apprentice.tasks.training.shared_prompts import forward_rows, sharing_rows

PREFIX = 40
"""Tokens that all rows begin with."""


class Ran(NamedTuple):
    gradient: Any
    weights: Any
    log: list[dict[str, Any]]
    shapes: list[tuple[int, int]]
    """Rows and columns of every forward pass."""


def rows(prefix: int = PREFIX, turns: int = 1, tail: int = 3) -> list[dict[str, list[int]]]:
    """Eight rows of different lengths: a common prefix, a question each, turns with loss and replies without."""
    made = []
    for n in range(8):
        ids, labels = [*range(5, 5 + prefix), 50 + n, 60 + n], [IGNORED] * (prefix + 2)
        for turn in range(turns):
            said, reply = [70 + n, 71 + turn, *range(80, 80 + n % 3)], [90 + turn, 91]
            ids += said + reply
            labels += said + [IGNORED] * len(reply)
        made.append({"input_ids": ids + [99] * tail, "labels": labels + [IGNORED] * tail})
    return made


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Ran]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, set_seed
    from trl import SFTConfig, SFTTrainer

    from apprentice.tasks.models.tokenizer import byte_level

    byte_level("<|im_end|>", "<|endoftext|>").save_pretrained(tmp_path)

    def run(
        share: bool, data: list[dict[str, list[int]]], *, dropout: float = 0.0, lora: bool = False, **args: Any
    ) -> Ran:
        set_seed(0)
        shape: Any = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
        heads: Any = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = Qwen3ForCausalLM(
            Qwen3Config(vocab_size=300, initializer_range=0.3, attention_dropout=dropout, **shape, **heads)
        )
        shapes: list[tuple[int, int]] = []
        kept: list[Any] = []

        class Noting(SFTTrainer):
            def training_step(self, *given: Any, **named: Any) -> Any:
                loss = super().training_step(*given, **named)
                learned = [each.grad for each in model.parameters() if each.grad is not None]
                kept.append(torch.cat([each.flatten().clone() for each in learned]))
                return loss

        def note(module: Any, given: Any, named: dict[str, Any]) -> None:
            shapes.append(tuple(named["input_ids"].shape))

        from peft import LoraConfig

        settings: Any = {
            **dict(report_to="none", use_cpu=True, bf16=False, activation_checkpointing=False, max_steps=3),
            **dict(logging_steps=1, save_strategy="no", per_device_train_batch_size=4, disable_tqdm=True),
            **dict(eval_strategy="steps", eval_steps=3, gradient_accumulation_steps=2, max_length=None),
            **args,
        }
        trainer = (sharing_rows(Noting) if share else Noting)(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(tmp_path),
            train_dataset=Dataset.from_list(data),
            eval_dataset=Dataset.from_list(data[:3]),
            peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False) if lora else None,
            args=SFTConfig(str(tmp_path), **settings),
        )
        model.register_forward_pre_hook(note, with_kwargs=True)
        trainer.train()
        weights = torch.cat([each.detach().flatten() for each in model.parameters()])
        return Ran(kept, weights, trainer.state.log_history, shapes)

    return run


def assert_same(plain: Ran, sharing: Ran) -> None:
    for one, other in zip(plain.gradient, sharing.gradient, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-5
    assert float((plain.weights - sharing.weights).norm() / plain.weights.norm()) < 1e-5
    for before, after in zip(plain.log, sharing.log, strict=True):
        for name in {"loss", "mean_token_accuracy", "entropy", "num_tokens", "eval_loss"} & before.keys():
            assert after[name] == pytest.approx(before[name], rel=1e-4), name


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("tail", [0, 20])
def test_the_common_beginning_is_computed_once_and_what_follows_the_last_token_with_loss_not_at_all(
    trained: Callable[..., Ran], turns: int, tail: int
):
    data = rows(turns=turns, tail=tail)
    plain, sharing = trained(False, data), trained(True, data)
    assert_same(plain, sharing)
    assert (1, PREFIX) in sharing.shapes
    assert (
        max(columns for count, columns in sharing.shapes if count > 1)
        <= max(len(each["labels"]) for each in data) - PREFIX
    )
    assert sum(a * b for a, b in sharing.shapes) < sum(a * b for a, b in plain.shapes) / 2


def test_the_head_computes_the_logits_of_tokens_with_loss_alone():
    """On a CPU that of TRL computes those of every token of the rows."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    shape: Any = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=300, num_attention_heads=2, num_key_value_heads=2, **shape))
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    data = rows(turns=2)
    wide = max(len(each["labels"]) for each in data)
    ids, labels = (
        torch.tensor([each[name] + [fill] * (wide - len(each[name])) for each in data])
        for name, fill in (("input_ids", 0), ("labels", IGNORED))
    )
    mask = torch.tensor([[1] * len(each["labels"]) + [0] * (wide - len(each["labels"])) for each in data])
    for first in (0, PREFIX + 2):  # with a common beginning, and without
        batch = {"input_ids": ids[:, first:], "attention_mask": mask[:, first:], "labels": labels[:, first:]}
        learned = int((batch["labels"][:, 1:] != IGNORED).sum())
        out = forward_rows(model)(**batch, fused_lm_head=True)
        assert out.log_probs.shape == (1, learned)
        assert int(out.label_mask.sum()) == learned
        torch.testing.assert_close(out.log_probs.sum(), model(**batch, fused_lm_head=True).log_probs.sum())


def test_an_adapter_learns_the_same(trained: Callable[..., Ran]):
    plain, sharing = trained(False, rows(), lora=True), trained(True, rows(), lora=True)
    assert_same(plain, sharing)
    assert (1, PREFIX) in sharing.shapes


@pytest.mark.parametrize(
    "why",
    [
        {"data": rows(prefix=8)},
        {"dropout": 0.1},
        {"activation_checkpointing": True},
        {"per_device_train_batch_size": 1, "eval_strategy": "no"},
        {"packing": True, "max_length": 64, "eval_strategy": "no"},
    ],
    ids=["short", "dropout", "checkpointing", "one row", "packed"],
)
def test_rows_are_computed_whole_where_sharing_would_not_be_exact_or_not_pay(
    trained: Callable[..., Ran], why: dict[str, Any]
):
    given = {"data": rows(), **why}
    plain, sharing = trained(False, **given), trained(True, **given)
    assert_same(plain, sharing)
    assert (1, PREFIX) not in sharing.shapes


def test_rows_without_any_loss_are_left_to_trl(trained: Callable[..., Ran]):
    silent = [each | {"labels": [IGNORED] * len(each["labels"])} for each in rows()]
    sharing = trained(True, silent, eval_strategy="no")
    assert all(float(each.norm()) == 0.0 for each in sharing.gradient)
