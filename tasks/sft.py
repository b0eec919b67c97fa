"""Supervised fine-tuning on the kept rollouts: the student learns the form of an episode from the teacher.

In: the base student, `KeptRollouts`, `LengthStats`. Out: `SftCheckpoint`: weights, tokenizer, log.json, curves.png.
TRL's SFTTrainer with loss on the assistant's tokens only, over whole trajectories: the call, and the short turn after
the tool's reply, for loops that generate one (a student that never saw it runs on to the length limit).
"""

import itertools
import json
import math
from typing import Any

from apprentice.tasks.adapters import adapter_arguments, model_to_train
from apprentice.tasks.artifacts import BaseStudent, KeptRollouts, LengthStats, SftCheckpoint
from apprentice.tasks.hardware import check_training, this_machine
from apprentice.tasks.memory import told_when_full
from apprentice.tasks.processes import on_processes
from apprentice.tasks.rendering import load_tokenizer, training_row
from apprentice.tasks.stage import Bench, stage
from apprentice.tasks.training import Learned, arguments, finish, on_one_gpu, train
from apprentice.tasks.training_specs import SftSpec
from apprentice.tasks.watcher import settle, watch

SHOWN = {"loss": "loss", "mean_token_accuracy": "token accuracy", "grad_norm": "gradient norm"}


@stage(gives=SftCheckpoint, version=3, title="SFT", gpu=True)
@told_when_full("sft")
def sft(
    bench: Bench, spec: SftSpec, student: BaseStudent, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """Trains for `spec.epochs` over the kept rollouts, or until it is right often enough."""
    check_training("sft", spec, this_machine())
    return on_processes(spec, train_sft, bench, spec, student, kept, lengths, seed)


def train_sft(
    bench: Bench, spec: SftSpec, student: BaseStudent, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(seed)
    folder = bench.fetch(student)
    tokenizer = load_tokenizer(folder)
    with (bench.fetch(kept) / "kept.jsonl").open() as episodes:
        played = list(map(json.loads, itertools.islice(episodes, spec.max_rows)))
        rows = [training_row(episode["messages"], json.loads(episode["tools"])) for episode in played]
    config = SFTConfig(
        **arguments(bench, spec, seed, "sft"),
        num_train_epochs=spec.epochs,
        max_length=lengths.max_length,
        assistant_only_loss=True,
    )
    trainer = SFTTrainer(
        model=model_to_train(folder, spec),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=on_one_gpu(config),
        **adapter_arguments(spec.lora),
    )
    if spec.stop_at_token_accuracy is not None:
        trainer.add_callback(_stopper(spec.stop_at_token_accuracy))
    watch(trainer, spec.signals)
    batches = math.ceil(len(rows) / spec.batch_size / spec.processes)
    steps = math.ceil(spec.epochs * math.ceil(batches / spec.gradient_accumulation))
    train(bench, "SFT steps", trainer, steps)
    settle(bench, trainer, spec.signals)
    asked = [(episode["seed"], episode["messages"][1]["content"]) for episode in played]
    return finish(bench, trainer, SHOWN, Learned("sft", asked, before=folder), spec.lora)


def _stopper(enough: float) -> Any:
    """Ends training once a log's mean token accuracy is `enough`."""
    from transformers import TrainerCallback

    class Stopper(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            control.should_training_stop |= float((logs or {}).get("mean_token_accuracy", 0.0)) >= enough

    return Stopper()
