"""What SFT and GRPO share: TRL's arguments, a bar, Trackio, and the log that is kept with the checkpoint."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from apprentice.tasks import announce
from apprentice.tasks.pictures import curves
from apprentice.tasks.specs import TrainerSpec
from apprentice.tasks.stage import Bench


def arguments(bench: Bench, spec: TrainerSpec, seed: int, name: str) -> dict[str, Any]:
    """The arguments that SFTConfig and GRPOConfig have in common. Trackio reads its folder when it is imported."""
    import torch

    os.environ["TRACKIO_DIR"] = str(bench.work.store.root / "trackio")

    return {
        "output_dir": str(bench.scratch),
        "per_device_train_batch_size": spec.batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": spec.scheduler,
        "warmup_steps": spec.warmup_steps,
        "adam_epsilon": spec.adam_epsilon,
        "adam_beta2": spec.adam_beta2,
        "activation_checkpointing": spec.gradient_checkpointing,
        "bf16": spec.bf16,
        "use_cpu": not torch.cuda.is_available(),
        "seed": seed,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "trackio",
        "project": bench.work.store.project,
        "run_name": f"{name}-{bench.key}",
    }


@contextmanager
def training(bench: Bench, title: str, trainer: Any, steps: int) -> Iterator[None]:
    """A bar while the trainer works."""
    from transformers import PrinterCallback, TrainerCallback

    class Bar(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            advance(1)

    trainer.remove_callback(PrinterCallback)
    # Trackio greets on standard output; errors and warnings come another way
    with announce.progress(title, steps) as advance, redirect_stdout(StringIO()):
        trainer.add_callback(Bar())
        yield


def keep_log(bench: Bench, trainer: Any, shown: dict[str, str]) -> None:
    """Writes log.json and curves.png beside the weights."""
    log = [entry for entry in trainer.state.log_history if "step" in entry]
    (bench.out / "log.json").write_text(json.dumps(log))
    picture = curves(log, shown, bench.out / "curves.png")
    announce.picture(f"{bench.scratch.name.split('-')[0]}-curves", picture, "Training curves")


def read_log(checkpoint: Path) -> list[dict[str, Any]]:
    """The trainer's log history of a checkpoint."""
    return json.loads((checkpoint / "log.json").read_text())
