"""The parts that SFT and GRPO share: TRL's arguments, progress, tracking, checkpoints and resuming, the log.

In: a trainer. Out: a trained model, bit-identical whether or not the training was interrupted, and log.json.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from apprentice.envs.wire.server import SessionLost
from apprentice.tasks.analysis.curve_signals import ADVICE
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.rendering import chat_format
from apprentice.tasks.files.question_lists import write_learned
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.checkpoints import ending_at, merged, save
from apprentice.tasks.models.memory import to_master_weights
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.pictures import curves
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.training.complete_checkpoints import STATE, newest_checkpoint, seal, seal_when_saved, step_of
from apprentice.tasks.training.tracking.reporters import log_by_step, report_to, run_of_its_own, trackio_arguments

UNSTEADY = ("step_time", "num_tokens", "runtime", "samples_per_second", "steps_per_second")
"""Metrics that log.json omits: a resumed SFTTrainer restarts `num_tokens`, the others depend on the machine."""


def arguments(context: StageContext, spec: TrainerSpec, seed: int) -> dict[str, Any]:
    """The arguments that SFTConfig and GRPOConfig have in common."""
    import torch

    return {
        "output_dir": str(context.scratch),
        "per_device_train_batch_size": spec.batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": spec.scheduler,
        "warmup_steps": spec.warmup_steps,
        "adam_epsilon": spec.adam_epsilon,
        "adam_beta2": spec.adam_beta2,
        "activation_checkpointing": spec.gradient_checkpointing,
        "bf16": spec.bf16,
        "use_liger_kernel": spec.liger,
        "use_cpu": not torch.cuda.is_available(),
        "seed": seed,
        "logging_steps": spec.logging_steps,
        "logging_nan_inf_filter": False,  # diagnose.py needs to see NaN
        "save_strategy": "steps",
        "save_steps": spec.checkpoint_steps,
        "save_total_limit": 2,
        "disable_tqdm": True,
        "report_to": report_to(context.run.report_to, context.run.store.project),
        **trackio_arguments(context.run),
        "run_name": f"{spec.section} {context.run.store.project} seed {seed} {context.key[:8]}",
    }


def train(context: StageContext, title: str, trainer: Any, steps: int) -> None:
    """Trains to the end, resuming from the newest complete checkpoint in the scratch folder.

    When the environment is lost, saves the last finished step as a checkpoint if it was logged, and raises SessionLost.
    A killed process resumes from its last regular checkpoint.
    """
    _fit(trainer.args, steps)
    checkpoint = newest_checkpoint(context.scratch)
    done = step_of(checkpoint)
    if checkpoint:
        announce.warn(f"{title.split()[0]} resumes after step {done}.")
    elif any(context.scratch.glob("checkpoint-*")):
        announce.warn(f"{title.split()[0]} begins anew: no complete checkpoint is left.")
    to_master_weights(trainer.model)
    randomness = _keeper()
    trainer.add_callback(randomness)
    log_by_step(trainer)
    seal_when_saved(trainer)
    if checkpoint and _was_the_last(checkpoint):  # the trainer would do one more step
        trl_internals.load_weights(trainer, checkpoint)
        trainer.state = trainer.state.load_from_json(str(checkpoint / STATE))
        return
    with run_of_its_own(context, trainer), _bar(title, trainer, steps, done):
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except SessionLost:
            step = trainer.state.global_step
            logged = step % trainer.args.logging_steps == 0  # otherwise the next log's mean would lack some steps
            evaluated = not trainer.control.should_evaluate  # resuming would skip an interrupted evaluation
            new = step > step_of(newest_checkpoint(context.scratch))
            trainer.accelerator.wait_for_everyone()  # all processes check before one writes
            if evaluated and logged and new:
                randomness.restore()
                trl_internals.save_checkpoint(trainer)  # the failed step changed no weight
                seal(trainer, context.scratch / f"checkpoint-{step}")
            raise


def _fit(args: Any, steps: int) -> None:
    """Corrects a warmup that would not end within a training of so many steps, and a log that it would not reach."""
    if args.warmup_steps >= steps:
        announce.warn(
            f"The training has {steps} steps, and warmup_steps is {args.warmup_steps}: the rate would never "
            f"be reached. It warms up for {steps // 10} steps."
        )
        args.warmup_steps = steps // 10
    if args.logging_steps > steps:
        announce.warn(f"The training has {steps} steps, and logging_steps is {args.logging_steps}: each is logged.")
        args.logging_steps = 1


def _was_the_last(checkpoint: Path) -> bool:
    state = json.loads((checkpoint / STATE).read_text())
    return state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]


def _keeper() -> Any:
    """A callback that saves all random states after each step, to restore them after a failed step."""
    import numpy
    import torch
    from transformers import TrainerCallback

    class RandomStateKeeper(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            self._python, self._numpy = random.getstate(), numpy.random.get_state()
            self._torch, self._cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all()

        def restore(self) -> None:
            random.setstate(self._python)
            numpy.random.set_state(self._numpy)
            torch.set_rng_state(self._torch)
            torch.cuda.set_rng_state_all(self._cuda)

    return RandomStateKeeper()


@contextmanager
def _bar(title: str, trainer: Any, steps: int, done: int) -> Iterator[None]:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    # hides Trackio's messages on standard output
    with announce.progress(title, steps, done) as advance, redirect_stdout(StringIO()):
        trl_internals.call_back(trainer, on_step_end=lambda *_, **__: advance(1))
        yield


def finish(
    context: StageContext,
    trainer: Any,
    spec: TrainerSpec,
    shown: dict[str, str],
    questions: Iterable[tuple[int, str]],
    before: Path,
) -> dict[str, Any]:
    """Writes weights, tokenizer, log and learned.jsonl in the first process; returns the artifact's fields.

    Args:
        shown: The curves to plot, metric name to label.
        questions: What it trained on, seeds and texts.
        before: The initial checkpoint.

    Raises Stop for NaN or infinite weights.
    """
    weights = _gathered(trainer)
    if not trainer.is_world_process_zero():
        return {}
    broken = [name for name, each in (weights or {}).items() if each.is_floating_point() and not each.isfinite().all()]
    if broken:  # the full weights of a sharded model are available only here
        raise Stop(f"The trained weights contain NaN ({broken[0]} and others).", ADVICE["nan"])
    log = keep_log(context, trainer, shown)
    write_learned(context.out, spec.section, questions, before)
    tokenizer, model = trainer.processing_class, trainer.model
    if spec.lora is not None:
        model, weights = merged(model, before, spec.lora, weights, context.run.trusted), None
    counts = save(ending_at(model, chat_format(tokenizer).ends), tokenizer, context.out, weights, before)
    metric = spec.shown_metric
    last = next((entry[metric] for entry in reversed(log) if entry.get(metric) is not None), None)
    return counts | {"stage": spec.section, metric: last}


def _gathered(trainer: Any) -> dict[str, Any] | None:
    """The full state dict, in the first process, of a model that is wrapped or sharded; all processes call it.

    FSDP2 shards a model in place: it is not wrapped, and its parameters are DTensors.
    """
    sharded = any(hasattr(weight, "full_tensor") for weight in trainer.model.parameters())
    if trainer.model_wrapped is trainer.model and not sharded:
        return None
    return trainer.accelerator.get_state_dict(trainer.model_wrapped)


def keep_log(context: StageContext, trainer: Any, shown: dict[str, str]) -> list[dict[str, Any]]:
    """Writes log.json and curves.png, without metrics that depend on the machine, so that the same training gives the
    same artifact; returns the log."""
    log = [
        {name: _or_none(value) for name, value in entry.items() if not _is_unsteady(name)}
        for entry in (_by_dataset(entry, trainer.eval_dataset) for entry in trainer.state.log_history)
        if "step" in entry and "train_runtime" not in entry  # omits the final summary, which differs after a resume
    ]
    (context.out / "log.json").write_text(json.dumps(log, sort_keys=True))  # a resumed log is sorted
    picture = curves(log, shown, context.out / "curves.png")
    announce.picture(f"{context.scratch.name.split('-')[0]}-curves", picture, "Training curves")
    return log


def _by_dataset(entry: dict[str, Any], evaluated: Any) -> dict[str, Any]:
    """Renames an entry's metrics after its dataset: with several evaluation datasets TRL does so for the loss only."""
    labels = evaluated if isinstance(evaluated, dict) else {}
    whose = next((f"eval_{label}_" for label in labels if f"eval_{label}_loss" in entry), None)
    if whose is None:
        return entry
    return {
        f"{whose}{name.removeprefix('eval_')}"
        if name.startswith("eval_") and not name.startswith(whose)
        else name: value
        for name, value in entry.items()
    }


def _is_unsteady(metric: str) -> bool:
    return metric in UNSTEADY or (metric.startswith("eval_") and metric.endswith(UNSTEADY))


def _or_none(value: Any) -> Any:
    """None for NaN and infinity, which JSON does not support; signals.json records them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_log(checkpoint: Path) -> list[dict[str, Any]]:
    return json.loads((checkpoint / "log.json").read_text())
