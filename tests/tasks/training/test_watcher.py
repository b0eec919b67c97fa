"""A training ends where its rules say so, says why, and never leaves weights that are no numbers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.training.complete_checkpoints import newest_checkpoint, step_of
from tests.tasks.toy_training import SMALL, Toy, left_by, run, small, variety


@pytest.fixture
def toy(work: RunContext, tmp_path: Path, chain_sum) -> Callable[..., StageContext]:
    def make(name: str, reward: Toy, *callbacks: Any, **settings: Any) -> StageContext:
        return run(work, tmp_path / name, chain_sum, small(**settings), reward, *callbacks)

    return make


def warned(work: RunContext) -> list[str]:
    """What was said so far, by the structured log."""
    lines = (work.store.root / "logs" / "toy.jsonl").read_text().splitlines()
    return [row["message"] for row in map(json.loads, lines) if row["levelname"] == "WARNING"]


def same_after(step: int) -> Toy:
    """All rollouts are rewarded alike after this step."""
    return Toy(lambda text, now: variety(text, now) if now <= step else 1.0)


STOPS = {"signals": RewardSignals(window=3, dead_groups=1.0, saturated="stop")}


def test_a_saturated_training_ends_at_that_step_and_says_why(toy, work: RunContext):
    left = left_by(toy("whole", same_after(3), **STOPS))
    assert [entry["step"] for entry in left.log] == [1, 2, 3, 4, 5, 6]
    assert left.signals["signals"][0] | {"advice": ""} == {
        "kind": "saturated",
        "step": 6,
        "found": "Step 6: 100% of the groups scored all the same in the last 3 logs, at a mean reward of 1.",
        "advice": "",
        "stopped": True,
    }
    assert (left.signals["trained_steps"], left.signals["published_step"]) == (6, 6)
    assert sum("100% of the groups" in line for line in warned(work)) == 1


def test_a_training_that_only_warns_goes_on_to_its_end(toy, work: RunContext):
    warns = RewardSignals(window=3, dead_groups=1.0)
    left = left_by(toy("whole", same_after(3), signals=warns))
    assert left.log[-1]["step"] == SMALL["max_steps"]
    assert [(each["kind"], each["stopped"]) for each in left.signals["signals"]] == [("saturated", False)]
    assert sum("100% of the groups" in line for line in warned(work)) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "interrupted_at"),
    [
        (STOPS, [6]),
        pytest.param(
            {"signals": RewardSignals(window=3, dead_groups=1.0)},
            [6, 3],  # steps 6 and, resumed at 4, 7
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_training_that_is_interrupted_says_the_same_and_says_it_once(toy, work: RunContext, settings, interrupted_at):
    whole = left_by(toy("whole", same_after(3), **settings))
    said = len(warned(work))
    for call in interrupted_at:
        with pytest.raises(KeyboardInterrupt):
            toy("again", same_after(3).failing(call, KeyboardInterrupt()), **settings)
    resumed = same_after(3)
    assert left_by(toy("again", resumed, **settings)) == whole
    assert 0 < resumed.calls < len(whole.log)
    assert sum("100% of the groups" in line for line in warned(work)[said:]) == 1

    after = same_after(3)
    assert left_by(toy("whole", after, **settings)) == whole, "killed between its last step and the publication"
    assert after.calls == 0


def overflow(step: int) -> Any:
    """What the model computes in one step is no number."""
    from transformers import TrainerCallback

    class Overflow(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step + 1 == step:
                self.hook = model.model.norm.register_forward_hook(lambda module, given, hidden: hidden * math.nan)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                self.hook.remove()

    return Overflow()


def is_finite(context: StageContext) -> bool:
    import torch
    from safetensors.torch import load_file

    return all(bool(torch.isfinite(each).all()) for each in load_file(context.out / "model.safetensors").values())


def test_a_gradient_that_is_no_number_ends_it_with_the_checkpoint_before(toy, tmp_path: Path):
    left = left_by(toy("nan", Toy(), overflow(5)))
    assert left.log[-1]["step"] == 5
    assert left.log[-1]["grad_norm"] is None, "JSON knows no NaN"
    assert left.signals["signals"][0]["kind"] == "nan"
    assert left.signals["signals"][0]["found"].startswith("Step 5: ")
    assert left.signals["published_step"] == 2, "the weights after step 4 gave that step, so they are not trusted"
    assert left.weights == digest(tmp_path / "nan" / "checkpoint-2", "*.safetensors")
    assert step_of(newest_checkpoint(tmp_path / "nan")) == 4
    assert left_by(toy("nan", Toy(), overflow(5))) == left, "killed before the publication"


def test_a_gradient_that_is_no_number_is_left_out_where_the_recipe_only_warns(toy):
    context = toy("nan", Toy(), overflow(5), signals=RewardSignals(nan="warn"))
    left = left_by(context)
    assert left.log[-1]["step"] == left.signals["published_step"] == SMALL["max_steps"]
    assert [each["step"] for each in left.signals["signals"]] == [5]
    assert is_finite(context)
    assert [entry["step"] for entry in left.log if entry["loss"] is None] == [5]


def test_the_last_step_is_left_out_as_any_other_is(toy):
    last = SMALL["max_steps"]
    left = left_by(toy("nan", Toy(), overflow(last), signals=RewardSignals(nan="warn"), checkpoint_steps=last))
    assert left.signals["published_step"] == last


def test_a_reward_without_end_stops_it_and_costs_no_weights(toy):
    reward = Toy(lambda text, now: math.inf if now == 5 and text[:1] > "a" else variety(text, now))
    left = left_by(toy("infinite", reward))
    assert left.signals["signals"][0]["found"] == "Step 5: reward is inf."
    assert left.signals["trained_steps"] == left.signals["published_step"] == 5


@pytest.mark.parametrize("act", ["stop", "warn", "off"])
def test_weights_that_are_no_numbers_are_never_published(toy, act):
    """With a learning rate that breaks the weights at once, and with no checkpoint from before."""
    with pytest.raises(Stop, match=r"Step \d+: .*no checkpoint from before is left to publish\.\n→ Lower the learning"):
        toy("broken", Toy(), learning_rate=1e38, signals=RewardSignals(nan=act))


def test_sft_stops_at_a_loss_that_is_no_number(context: StageContext, work: RunContext, chain_sum):
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from apprentice.tasks.settings.sft_settings import SftSpec
    from apprentice.tasks.training.trainer import arguments, train
    from apprentice.tasks.training.watcher import select_weights, watch
    from tests.tasks.test_one_prompt import tiny_model
    from tests.tokenizers import build_tokenizer

    spec = SftSpec(warmup_steps=0, logging_steps=2, checkpoint_steps=2).model_copy(update={"learning_rate": 1e38})
    tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
    args = {**arguments(context, spec, 0), "report_to": "none"}
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"text": f"{n} + {n} = {2 * n}"} for n in range(64)]),
        args=SFTConfig(**args, num_train_epochs=1),
    )
    watch(trainer, spec.signals)
    train(context, "SFT steps", trainer, 8)
    assert trainer.state.global_step < 8
    with pytest.raises(Stop, match="no checkpoint from before"):
        select_weights(context, trainer, spec.signals)
