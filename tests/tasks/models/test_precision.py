"""Law 12: bf16 computes, fp32 is what the optimizer steps and what is published; recomputing changes no loss. Whether
bf16 pays is measured, once for a machine.
"""

from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models import memory
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.training.trainer import arguments, train
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer


@pytest.fixture
def trained(chain_sum, context: StageContext):
    """Trains three steps with these settings, from the same weights."""
    import torch
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    said = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}]
    rows = [{"messages": said, "chat_template_kwargs": TEMPLATE_ARGUMENTS}] * 12

    def run(**settings: Any) -> Any:
        spec = SftSpec(logging_steps=1, learning_rate=1e-3, warmup_steps=0, **settings)
        torch.manual_seed(0)
        trainer = SFTTrainer(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            args=SFTConfig(
                **{**arguments(context, spec, 0), "report_to": "none", "save_strategy": "no"},
                max_steps=3,
                assistant_only_loss=True,
            ),
        )
        train(context, "SFT steps", trainer, 3)
        save(trainer.model, tokenizer, context.out)
        return trainer

    return run


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_bf16_computes_over_weights_in_fp32_and_a_checkpoint_in_fp32(trained, context: StageContext):
    import torch
    from safetensors.torch import load_file

    whole = losses(trained())
    trainer = trained(bf16=True)
    assert whole != losses(trainer) == pytest.approx(whole, rel=0.05), "it did not compute in bf16"
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    moments = [value for state in trainer.optimizer.state.values() for value in state.values() if value.dim()]
    assert {value.dtype for value in moments} == {torch.float32}
    published = load_file(context.out / "model.safetensors")
    assert {weight.dtype for weight in published.values()} == {torch.float32}
    fine = [weight for weight in published.values() if not torch.equal(weight, weight.bfloat16().float())]
    assert fine, "weights that went through bf16 would be equal to their rounding"
    assert {weight.dtype for weight in load_model(context.out).parameters()} == {torch.float32}


def test_gradient_checkpointing_recomputes_and_changes_no_loss(trained):
    kept, again = trained(), trained(gradient_checkpointing=True)
    assert (kept.model.is_activation_checkpointing, again.model.is_activation_checkpointing) == (False, True)
    assert losses(again) == losses(kept)
    assert len(losses(kept)) == 3


@pytest.mark.parametrize(("ratio", "pays"), [(4.7, True), (1.3, True), (1.29, False), (0.4, False)])
def test_bf16_pays_where_a_product_of_matrices_is_faster_and_is_measured_once(
    ratio: float, pays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measured: list[float] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "_times_faster", lambda: measured.append(ratio) or ratio)
    assert [memory.bf16_pays() for _ in range(2)] == [pays, pays]
    assert measured == [ratio]
    monkeypatch.setattr(memory, "this_torch", lambda: "another machine with this home")
    assert memory.bf16_pays() is pays
    assert measured == [ratio, ratio]


def test_the_time_of_a_product_is_that_of_this_machine():
    assert memory._times_faster() > 0.0
