"""A GRPO training of seconds, without an environment: the reward is a function of what was written, and of the step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.analysis.curve_signals import read_signals
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.grpo import held_out_arguments
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.training.trainer import arguments, keep_log, train
from apprentice.tasks.training.watcher import select_weights, watch
from tests.tasks.test_one_prompt import tiny_model
from tests.tokenizers import build_tokenizer

SMALL: dict[str, Any] = {
    "batch_size": 8,
    "gradient_accumulation": 1,
    "num_generations": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "checkpoint_steps": 2,
    "max_steps": 8,
    "max_completion_length": 8,
}


def small(**settings: Any) -> GrpoSpec:
    """`learning_rate` may be one that no recipe can have, to break a training."""
    rate = {"learning_rate": settings.pop("learning_rate")} if "learning_rate" in settings else {}
    return GrpoSpec(**{**SMALL, **settings}).model_copy(update=rate)


def variety(text: str, step: int) -> float:
    """A reward that differs within a group: how many letters a text has."""
    return len(set(text)) / 10


class Toy:
    """TRL's reward function: `score` of a text at a step.

    Attributes:
        calls: Batches that were scored, evaluations included.
    """

    __name__ = "toy"

    def __init__(self, score: Callable[[str, int], float] = variety):
        self._score = score
        self._fails_at = 0
        self._error: BaseException | None = None
        self.calls = 0

    def failing(self, at: int, error: BaseException) -> "Toy":
        """The same, but that a call of that number fails."""
        self._fails_at, self._error = at, error
        return self

    def __call__(self, completions: list[Any], trainer_state: Any, **_: Any) -> list[float]:
        self.calls += 1
        if self.calls == self._fails_at and self._error is not None:
            raise self._error
        step = trainer_state.global_step + 1
        return [self._score(completion[0]["content"], step) for completion in completions]


class Left(NamedTuple):
    """What a training leaves."""

    weights: str
    log: list[dict[str, Any]]
    signals: dict[str, Any]


def left_by(context: StageContext) -> Left:
    log = json.loads((context.out / "log.json").read_text())
    return Left(digest(context.out, "*.safetensors"), log, read_signals(context.out))


def run(
    work: RunContext, folder: Path, task: EnvironmentSpec, spec: GrpoSpec, reward: Toy, *callbacks: Any
) -> StageContext:
    """Trains in `folder` until it ends or fails, from where an earlier call was interrupted."""
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    context = StageContext(work, "0" * 20, folder.with_name(f"{folder.name}-out"), folder)
    context.out.mkdir(exist_ok=True)
    context.scratch.mkdir(exist_ok=True)
    set_seed(0)
    tokenizer = build_tokenizer(task, ["1 + 1 =", "2 + 2 ="])
    rows = [{"prompt": [{"role": "user", "content": f"{n} + 1 ="}]} for n in range(60)]
    held = spec.held_out.questions
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows[held:]),
        eval_dataset=Dataset.from_list(rows[:held]) if held else None,
        reward_funcs=reward,  # type: ignore[arg-type]
        callbacks=list(callbacks),
        args=GRPOConfig(
            **{**arguments(context, spec, 0), "report_to": "none"},
            **held_out_arguments(spec),
            max_steps=spec.max_steps,
            num_generations=spec.num_generations,
            max_completion_length=spec.max_completion_length,
            chat_template_kwargs=TEMPLATE_ARGUMENTS,
        ),
    )
    watch(trainer, spec.signals)
    train(context, "GRPO steps", trainer, spec.max_steps)
    select_weights(context, trainer, spec.signals)
    keep_log(context, trainer, {"reward": "reward"})
    trainer.save_model(str(context.out))
    return context
