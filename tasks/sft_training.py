"""SFT as a run knows it: what starts it, what is checked and predicted before it, what is drawn of it."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from tempfile import TemporaryDirectory
from typing import Any

from apprentice.tasks.advice.learning import learned_nothing
from apprentice.tasks.artifacts.types import SftCheckpoint
from apprentice.tasks.models.checkpoints import adapter_arguments
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.sft import arguments_ahead, first_step, sft, trainer_class
from apprentice.tasks.training.forecast import Forecast, Student, held, saving, update
from apprentice.tasks.training.method import Curve, RunSoFar, Start, Training


def start(spec: SftSpec, made: RunSoFar) -> Start:
    """SFT learns from the kept rollouts, whatever was trained before it."""
    lessons = made.lessons
    return Start(spec, (made.models.last, lessons.kept, lessons.length_stats, made.seed))


def forecast(spec: SftSpec, rows: int, student: Student) -> Forecast:
    """SFT on so many rows."""
    rows = min(rows, spec.max_rows or rows)
    apart = int(rows * spec.held_out)
    of_epoch = math.ceil((rows - apart) / spec.batch_size)
    called = f"sft {spec.batch_size} {spec.bf16} {spec.share_prompts} {spec.lora}"
    learning = partial(_pass, spec=spec, student=student)
    learns = student.seconds(called, learning)
    judges = student.seconds(f"{called} held out", partial(learning, learns=False))
    held_out = math.ceil(apart / spec.batch_size) * judges
    saves = spec.epochs if apart else spec.epochs * of_epoch / spec.gradient_accumulation / spec.checkpoint_steps
    seconds = spec.epochs * (of_epoch * learns + held_out) + saves * saving(spec, student)
    return Forecast(seconds, held(spec, student) + student.saved(called, learning))


def _pass(model: Any, spec: SftSpec, student: Student, learns: bool = True) -> Callable[[], object]:
    """A step of TRL's SFT on rows that differ in their questions."""
    import torch
    from datasets import Dataset

    rows = list(islice(cycle(student.texts.rows), spec.batch_size))
    with TemporaryDirectory() as folder:
        own = {
            "output_dir": folder,
            "per_device_train_batch_size": spec.batch_size,
            "max_length": None,
            "bf16": False,
            "activation_checkpointing": spec.gradient_checkpointing,
            "use_cpu": not torch.cuda.is_available(),
            "report_to": "none",
            "disable_tqdm": True,
        }
        trainer = trainer_class(spec)(
            model=model,
            processing_class=student.tokenizer,
            train_dataset=Dataset.from_list(rows),
            args=config_of(type(spec), own, {}),
            **adapter_arguments(spec.lora),
        )
    batch = {name: each.to(model.device) for name, each in trainer.data_collator(rows).items()}
    step = update(trainer.model)

    def run() -> None:
        with (
            torch.autocast(model.device.type, torch.bfloat16, enabled=spec.bf16),
            nullcontext() if learns else torch.no_grad(),
        ):
            loss = trainer.compute_loss(trainer.model, dict(batch))
        if learns:
            loss.backward()
            step()

    return run


SFT = Training(
    SftSpec,
    SftCheckpoint,
    sft,
    start,
    arguments_ahead,
    first_step,
    curves={
        "loss": Curve("loss", ("nan",)),
        "mean_token_accuracy": Curve("token accuracy"),
        "entropy": Curve("entropy"),
    },
    forecast=forecast,
    warning=learned_nothing,
)
