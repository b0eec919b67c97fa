"""A training that was interrupted ends with the very weights and the very log of one that was not."""

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.wire.server import SessionLost
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.models.trl_internals import on_one_gpu
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.training.complete_checkpoints import LIST, newest_checkpoint, step_of
from apprentice.tasks.training.trainer import arguments, keep_log, train
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

SPEC = GrpoSpec(batch_size=8, gradient_accumulation=1, num_generations=4, learning_rate=1e-2, checkpoint_steps=2)
STEPS = 6


class Letters:
    """Rewards a text for the variety of its letters; loses its environment at one step, or is interrupted there."""

    __name__ = "letters"

    def __init__(self, fails_at: int = 0, error: BaseException | None = None):
        self._fails_at = fails_at
        self._error = error
        self.calls = 0

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        self.calls += 1
        if self.calls == self._fails_at and self._error is not None:
            raise self._error
        return [len(set(completion[0]["content"])) / 10 for completion in completions]


@pytest.fixture
def trained(chain_sum, work: RunContext, tmp_path: Path):
    """Trains in a scratch folder of that name, until it ends or fails; returns the bench."""
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def run(name: str, reward: Letters) -> StageContext:
        context = StageContext(work, "0" * 20, tmp_path / f"{name}-out", tmp_path / name)
        context.out.mkdir(exist_ok=True)
        context.scratch.mkdir(exist_ok=True)
        set_seed(0)
        tokenizer = build_tokenizer(chain_sum, ["1 + 1 =", "2 + 2 ="])
        rows = [{"prompt": [{"role": "user", "content": f"{n} + 1 ="}]} for n in range(40)]
        trainer = GRPOTrainer(
            model=tiny_model(tokenizer),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=reward,  # type: ignore[arg-type]
            args=GRPOConfig(
                **{**arguments(context, SPEC, 0), "report_to": "none"},
                max_steps=STEPS,
                num_generations=4,
                max_completion_length=8,
                chat_template_kwargs=TEMPLATE_ARGUMENTS,
            ),
        )
        train(context, "GRPO steps", trainer, STEPS)
        keep_log(context, trainer, {"reward": "reward"})
        trainer.save_model(str(context.out))
        return context

    return run


def outcome(context: StageContext) -> tuple[str, Any]:
    return digest(context.out, "*.safetensors"), json.loads((context.out / "log.json").read_text())


def test_a_training_that_lost_its_environment_or_was_stopped_goes_on_as_if_nothing_had_been(trained, tmp_path: Path):
    whole = outcome(trained("whole", Letters()))
    assert len({entry["reward"] for entry in whole[1]}) > 1, "nothing was learned: any two runs would be alike"

    with pytest.raises(SessionLost):
        trained("lost", Letters(fails_at=4, error=SessionLost("away")))
    assert step_of(newest_checkpoint(tmp_path / "lost")) == 3
    again = Letters()
    assert outcome(trained("lost", again)) == whole
    assert again.calls == 3  # steps 4, 5 and 6

    with pytest.raises(KeyboardInterrupt):
        trained("stopped", Letters(fails_at=4, error=KeyboardInterrupt()))
    again = Letters()
    assert outcome(trained("stopped", again)) == whole
    assert again.calls == 4  # from the interval's checkpoint, after step 2

    again = Letters()
    assert outcome(trained("whole", again)) == whole, "killed between its last step and the artifact's publication"
    assert again.calls == 0


@pytest.mark.parametrize(
    ("torn", "how"),
    [
        ("model.safetensors", "half"),
        ("optimizer.pt", "bits"),
        ("scheduler.pt", "missing"),
        (LIST, "half"),
        (LIST, "missing"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_left_for_the_one_before_bit_for_bit(
    trained, tmp_path: Path, torn: str, how: str
):
    whole = outcome(trained("whole", Letters()))
    with pytest.raises(KeyboardInterrupt):
        trained("stopped", Letters(fails_at=6, error=KeyboardInterrupt()))
    file = tmp_path / "stopped/checkpoint-4" / torn
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        damaged = content[:-8] + bytes(8) if how == "bits" else content[: len(content) // 2]
        file.write_bytes(damaged)
    again = Letters()
    assert outcome(trained("stopped", again)) == whole
    assert again.calls == 4


def test_a_training_begins_anew_and_says_so_when_no_checkpoint_is_complete(
    trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    whole = outcome(trained("whole", Letters()))
    with pytest.raises(KeyboardInterrupt):
        trained("stopped", Letters(fails_at=6, error=KeyboardInterrupt()))
    for checkpoint in (tmp_path / "stopped").glob("checkpoint-*"):
        (checkpoint / "optimizer.pt").unlink()
    said = capfd.readouterr().out
    assert "begins anew" not in said
    again = Letters()
    assert outcome(trained("stopped", again)) == whole
    assert again.calls == STEPS
    said = capfd.readouterr().out
    assert "checkpoint-4 is incomplete (optimizer.pt) and is skipped." in said
    assert "checkpoint-2 is incomplete (optimizer.pt) and is skipped." in said
    assert "GRPO begins anew: no complete checkpoint is left." in said


def test_one_process_takes_one_gpu_of_several(tmp_path: Path):
    from trl.trainer.sft_config import SFTConfig

    config = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    config._n_gpu = 2  # as transformers counts them
    assert on_one_gpu(config).n_gpu == 1
