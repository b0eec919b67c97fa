"""Adapters are trained; what is published are whole weights in fp32, the same ones after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.wire.server import SessionLost
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.checkpoints import adapter_arguments, load_model, merged, model_to_train, save
from apprentice.tasks.models.memory import to_master_weights
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.settings.training import LoraSpec
from apprentice.tasks.training.trainer import arguments, keep_log, train
from tests.tasks.test_one_prompt import tiny_model
from tests.tasks.training.test_trainer import SPEC, STEPS, Letters, outcome
from tests.tokenizers import build_tokenizer

LORA = SPEC.model_copy(update={"lora": LoraSpec(rank=4, alpha=8, dropout=0.1, targets=["q_proj", "v_proj"])})


@pytest.fixture
def tied() -> bool:
    """Whether the base shares its embeddings with its output layer."""
    return False


@pytest.fixture
def base(chain_sum, tmp_path: Path, tied: bool) -> Path:
    """A checkpoint to begin with."""
    import torch

    torch.manual_seed(0)
    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    model = tiny_model(tokenizer)
    model.config.tie_word_embeddings = tied
    save(type(model)(model.config), tokenizer, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def trained(base: Path, work: RunContext, tmp_path: Path):
    """Trains adapters in a scratch folder of that name, until it ends or fails; returns the bench and the trainer."""
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def run(name: str, reward: Letters) -> tuple[StageContext, Any]:
        context = StageContext(work, "0" * 20, tmp_path / f"{name}-out", tmp_path / name)
        context.out.mkdir(exist_ok=True)
        context.scratch.mkdir(exist_ok=True)
        set_seed(0)
        tokenizer = load_tokenizer(base)
        rows = [{"prompt": [{"role": "user", "content": f"{n} + 1 ="}]} for n in range(40)]
        trainer = GRPOTrainer(
            model=model_to_train(base, LORA),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=reward,  # type: ignore[arg-type]
            args=GRPOConfig(
                **{**arguments(context, LORA, 0), "report_to": "none"},
                max_steps=STEPS,
                num_generations=4,
                max_completion_length=8,
                chat_template_kwargs=TEMPLATE_ARGUMENTS,
            ),
            **adapter_arguments(LORA.lora),
        )
        train(context, "GRPO steps", trainer, STEPS)
        keep_log(context, trainer, {"reward": "reward"})
        assert LORA.lora is not None
        save(merged(trainer.model, base, LORA.lora), tokenizer, context.out)
        return context, trainer

    return run


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_published_are_whole_weights_that_say_what_the_adapters_said(trained, base: Path, tied: bool):
    import torch

    context, trainer = trained("whole", Letters())
    before, after = (dict(load_model(folder).named_parameters()) for folder in (base, context.out))
    assert before.keys() == after.keys(), "nothing is left of the adapters"
    assert ("lm_head.weight" in after) != tied
    assert not (context.out / "adapter_config.json").exists()
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    changed = {name.split(".")[-2] for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed == {"q_proj", "v_proj"}
    assert sum(weight.requires_grad for weight in trainer.model.parameters()) == 4  # two layers, two matrices each

    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():
        spoken = load_model(context.out).eval()(ids).logits
        adapted = trainer.model.eval()(input_ids=ids).logits
        plain = load_model(base).eval()(ids).logits
    torch.testing.assert_close(spoken, adapted, rtol=0.0, atol=1e-5)
    assert not torch.allclose(spoken, plain, rtol=0.0, atol=1e-3)
    config = json.loads((context.out / "config.json").read_text())
    assert "quantization_config" not in config


@pytest.mark.long
def test_adapters_that_were_interrupted_end_as_those_that_were_not(trained):
    whole = outcome(trained("whole", Letters())[0])
    assert len({entry["reward"] for entry in whole[1]}) > 1, "nothing was learned: any two runs would be alike"

    with pytest.raises(SessionLost):
        trained("lost", Letters(fails_at=4, error=SessionLost("away")))
    again = Letters()
    assert outcome(trained("lost", again)[0]) == whole
    assert again.calls == 3  # steps 4, 5 and 6

    with pytest.raises(KeyboardInterrupt):
        trained("stopped", Letters(fails_at=4, error=KeyboardInterrupt()))
    again = Letters()
    assert outcome(trained("stopped", again)[0]) == whole
    assert again.calls == 4  # from the interval's checkpoint, after step 2

    again = Letters()
    assert outcome(trained("whole", again)[0]) == whole, "killed between its last step and the artifact's publication"
    assert again.calls == 0


def test_what_is_trained_lies_in_fp32_and_what_is_frozen_stays_as_it_is(base: Path):
    """TRL turns the adapters of a quantized model to bf16, in which steps of 2e-5 would be lost."""
    import torch
    from peft import get_peft_model

    model = get_peft_model(load_model(base).to(torch.bfloat16), adapter_arguments(LORA.lora)["peft_config"])
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    to_master_weights(model)
    kinds = {weight.requires_grad: weight.dtype for weight in model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


def test_the_head_gets_the_last_states_of_a_batch_without_gaps(base: Path):
    """With gaps torch copies the head's weights for every row, where no gradient is needed."""
    import torch

    model, seen = load_model(base), []
    model.get_output_embeddings().register_forward_hook(lambda _, states, __: seen.append(states[0]))
    with torch.no_grad():
        model.generate(torch.tensor([[1, 2, 3], [4, 5, 6]]), max_new_tokens=2, do_sample=False)
    assert [states.shape[:2] for states in seen] == [(2, 1)] * 2
    assert all(states.is_contiguous() for states in seen)
