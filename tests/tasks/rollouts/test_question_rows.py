"""The checkpoint that does best on held-out questions is the one that is published."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.wire.server import SessionLost
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.files.question_lists import LEARNED
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.question_rows import split
from apprentice.tasks.settings.grpo_settings import HeldOut
from apprentice.tasks.training.complete_checkpoints import newest_checkpoint, step_of
from tests.tasks.toy_training import Toy, left_by, run, small

HELD = small(held_out=HeldOut(questions=16, every=2), checkpoint_steps=4)


def spoiler(after: int) -> Any:
    """Raises the learning rate to what makes a model forget all, after this step."""
    from transformers import TrainerCallback

    class Spoiler(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            if state.global_step >= after:
                for group in optimizer.param_groups:
                    group["lr"] = 3.0

    return Spoiler()


@pytest.fixture
def toy(work: RunContext, tmp_path: Path, chain_sum):
    def make(name: str, reward: Toy) -> Any:
        return run(work, tmp_path / name, chain_sum, HELD, reward, spoiler(after=4))

    return make


def held_out_rewards(log: list[dict[str, Any]]) -> dict[int, float]:
    return {entry["step"]: entry["eval_reward"] for entry in log if "eval_reward" in entry}


def test_the_best_step_is_kept_though_the_later_ones_fall(toy, tmp_path: Path):
    left = left_by(toy("whole", Toy()))
    rewards = held_out_rewards(left.log)
    assert list(rewards) == [2, 4, 6, 8]
    best = max(rewards, key=lambda step: rewards[step])
    assert best <= 4, "the later ones were to be spoilt"
    assert rewards[8] < rewards[best]
    assert left.signals["published_step"] == best
    assert left.signals["trained_steps"] == 8
    assert left.signals["held_out_reward"] == rewards[best]
    assert left.weights == digest(tmp_path / "whole" / f"checkpoint-{best}", "*.safetensors")
    assert left.weights != digest(tmp_path / "whole" / "checkpoint-8", "*.safetensors")
    assert not any("runtime" in name or "per_second" in name for entry in left.log for name in entry)


@pytest.mark.parametrize(
    ("call", "error", "kept"),
    [
        (7, KeyboardInterrupt(), 4),  # in the evaluation after step 4: calls 3, 4, 7 and 8 are evaluations
        pytest.param(7, SessionLost("away"), 4, marks=pytest.mark.long),
        pytest.param(10, SessionLost("away"), 5, marks=pytest.mark.long),  # in step 6
        pytest.param(10, KeyboardInterrupt(), 4, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_training_evaluates_chooses_and_ends_as_one_that_was_not(toy, tmp_path, call, error, kept):
    whole = left_by(toy("whole", Toy()))
    in_evaluation = call == 7
    with pytest.raises(type(error)):
        toy("again", Toy().failing(call, error))
    assert step_of(newest_checkpoint(tmp_path / "again")) == (2 if in_evaluation else kept)
    assert left_by(toy("again", Toy())) == whole
    after = Toy()
    assert left_by(toy("again", after)) == whole, "killed between its last step and the publication"
    assert after.calls == 0


def rows(*questions: str) -> list[dict[str, Any]]:
    return [{"seed": seed, "question": question} for seed, question in enumerate(questions)]


def test_what_is_held_out_is_distinct_new_to_the_model_and_not_trained_on(tmp_path: Path):
    (tmp_path / LEARNED).write_text('{"stage": "sft", "seed": 9, "question": "F"}\n')
    questions = rows("a", "b", "c", "d", "E", "e ", "f")
    train, held = split(questions, 2, tmp_path)
    assert [row["question"] for row in held] == ["d", "e "]
    assert [row["question"] for row in train] == ["a", "b", "c", "f"]
    assert split(questions, 0, tmp_path) == (questions, [])


def test_too_few_questions_to_hold_some_out_are_told(tmp_path: Path):
    with pytest.raises(Stop, match="needs 2 questions of the GRPO window, which has 3 distinct ones"):
        split(rows("a", "b", "c"), 2, tmp_path)


def test_an_evaluation_must_come_out_even_and_fall_on_a_log():
    with pytest.raises(ValidationError, match="must be a multiple of the 16"):
        small(held_out=HeldOut(questions=24), processes=2)
    with pytest.raises(ValidationError, match="must be a multiple of the 8"):
        small(held_out=HeldOut(questions=12))
    with pytest.raises(ValidationError, match="must be a multiple of logging_steps"):
        small(held_out=HeldOut(questions=16, every=3), logging_steps=2)
    assert small(held_out=HeldOut(questions=16, batch_size=16)).sessions() == 16
    assert small().sessions() == 8
