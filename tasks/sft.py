"""Supervised fine-tuning on the kept rollouts: the student learns the form of an episode from the teacher.

In: the base student, `KeptRollouts`, `LengthStats`. Out: `SftCheckpoint`: weights, tokenizer, log.json, curves.png.
TRL's SFTTrainer computes the loss on what the student would have to generate of whole trajectories. This includes a
short closing turn after the last tool reply: a student that never saw one generates up to the length limit there.
"""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apprentice.envs.player import Player
from apprentice.tasks.advice.learning import HELD_OUT_LOSS
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    KeptRollouts,
    LengthStats,
    SftCheckpoint,
)
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.example import example_episode
from apprentice.tasks.episodes.rendering import labelled, row_of, training_row
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.models.checkpoints import adapter_arguments, model_to_train
from apprentice.tasks.models.memory import check_training, explained_oom, this_machine
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.models.trl_internals import call_back, on_one_gpu
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.first_step import TOY, check_arguments, check_scheduler, config_of_a_step
from apprentice.tasks.training.shared_prompts import sharing_rows
from apprentice.tasks.training.trainer import arguments, finish, train
from apprentice.tasks.training.watcher import select_weights, stop_without_gain, watch

if TYPE_CHECKING:
    from datasets import Dataset


Episode = dict[str, Any]
HELD_OUT = "held_out"
"""The evaluation set that chooses the epoch, beside those of a mixture's environments."""
MIXTURE_HELD_OUT = 0.05
"""Share of each environment's rows in its evaluation set, where the recipe gives none."""
SHOWN = {"loss": "loss", "mean_token_accuracy": "token accuracy", "grad_norm": "gradient norm"}


@stage(produces=SftCheckpoint, version=4, title="SFT", drawn=Drawn("SFT"), gpu=True)
def sft(
    context: StageContext, spec: SftSpec, student: Checkpoint, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """Trains for `spec.epochs` epochs, or until token accuracy reaches `spec.stop_at_token_accuracy`.

    With `spec.held_out` it publishes the epoch with the lowest loss on held-out rows. Raises Stop for too few rows.
    """
    check_training(spec, this_machine())
    check_scheduler(spec)
    if spec.args:  # here and not in train_sft: its processes share a world, and its seed is set
        tools = json.loads(read_rows(context.fetch(kept) / "kept.jsonl")[0]["tools"])
        tokenizer = load_tokenizer(context.fetch(student), context.run.trusted)
        check_arguments(spec, lambda given: first_step(spec, given, tokenizer, tools))
    with explained_oom(spec):
        return on_processes(spec, train_sft, context, spec, student, kept, lengths, seed)


def train_sft(
    context: StageContext, spec: SftSpec, student: Checkpoint, kept: KeptRollouts, lengths: LengthStats, seed: int
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from transformers import set_seed

    set_seed(seed)
    folder = context.fetch(student)
    tokenizer = load_tokenizer(folder, context.run.trusted)
    read = read_rows(context.fetch(kept) / "kept.jsonl")[: spec.max_rows]
    played, apart = train_eval_split(read, spec.held_out)
    an_epoch = _steps(len(played), spec)
    own = sft_arguments(context, spec, seed, lengths.max_length) | (_evaluation(an_epoch, spec) if apart else {})
    trainer = trainer_class(spec)(
        model=model_to_train(folder, spec, context.run.trusted),
        processing_class=tokenizer,
        train_dataset=training_dataset(tokenizer, map(row_of, played)),
        eval_dataset={label: training_dataset(tokenizer, map(row_of, each)) for label, each in apart.items()} or None,
        args=on_one_gpu(config_of(type(spec), own, spec.args)),
        **adapter_arguments(spec.lora),
    )
    if spec.stop_at_token_accuracy is not None:
        _stop_at(trainer, spec.stop_at_token_accuracy)
    if spec.stop_without_gain is not None:
        stop_without_gain(trainer, spec.stop_without_gain)
    watch(trainer, spec.signals)
    most = trainer.args.max_steps  # of sft.args, in place of epochs
    rows_left: Any = trainer.train_dataset  # fewer where TRL packs them
    train(context, "SFT steps", trainer, most if most > 0 else math.ceil(spec.epochs * _steps(len(rows_left), spec)))
    select_weights(context, trainer, spec.signals)
    questions = [(episode["seed"], episode["messages"][1]["content"]) for episode in played]
    of_each = {f"eval_{label}_mean_token_accuracy": f"{label}: token accuracy" for label in apart}
    loss = {HELD_OUT_LOSS: "held-out loss"} if spec.held_out else {}
    return finish(context, trainer, spec, SHOWN | of_each | loss, questions, folder)


def training_dataset(tokenizer: Any, rows: Iterable[dict[str, Any]]) -> "Dataset":
    """The rows of `training_row` as `input_ids` and `labels`."""
    from datasets import Dataset

    return Dataset.from_list([labelled(tokenizer, row) for row in rows])


def trainer_class(spec: SftSpec) -> Any:
    """TRL's trainer, which shares what rows begin with if the recipe says so."""
    from trl import SFTTrainer

    return sharing_rows(SFTTrainer) if spec.share_prompts else SFTTrainer


def first_step(spec: SftSpec, given: dict[str, Any], tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Makes a step of SFT on a toy model."""
    from trl import SFTTrainer

    rows = training_dataset(tokenizer, [training_row(example_episode(tools[0]["function"]), tools)] * 2)
    with config_of_a_step(spec, {"per_device_train_batch_size": 1, "max_length": TOY.max_positions}, given) as config:
        model = built_model(TOY, tokenizer, seed=0)
        SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=config).train()


def _steps(rows: int, spec: SftSpec) -> int:
    """The steps of an epoch."""
    return math.ceil(math.ceil(rows / spec.batch_size / spec.processes) / spec.gradient_accumulation)


def sft_arguments(context: StageContext, spec: SftSpec, seed: int, max_length: int) -> dict[str, Any]:
    """The arguments of SFTConfig, without the recipe's `args` and the evaluation settings."""
    return {
        **arguments(context, spec, seed),
        "num_train_epochs": spec.epochs,
        "max_length": max_length,
    }


def arguments_ahead(context: StageContext, spec: SftSpec, _environment: Player, seed: int) -> dict[str, Any]:
    """The arguments of SFTConfig, with lengths and steps of an epoch that are known later."""
    own = sft_arguments(context, spec, seed, max_length=1024)
    return own | (_evaluation(spec.checkpoint_steps, spec) if spec.held_out else {})


def train_eval_split(episodes: list[Episode], held_out: float = 0.0) -> tuple[list[Episode], dict[str, list[Episode]]]:
    """Splits the episodes into those to train on and evaluation sets, on which loss and accuracy are measured.

    Of a mixture, each environment has a set with that share of its episodes, 5% by default; `held_out` adds one that
    joins them, or one of the only environment. Questions of a set are excluded from training by text, under any seed.
    Raises Stop if `held_out` leaves nothing to hold out or to train on.
    """
    by_label: dict[str, list[Episode]] = {}
    for episode in episodes:
        label, is_labelled, _ = episode.get("environment", "").partition(": ")
        if is_labelled or held_out:
            by_label.setdefault(label if is_labelled else HELD_OUT, []).append(episode)
    share = held_out or MIXTURE_HELD_OUT
    apart = {label: own[-max(1, int(len(own) * share)) :] for label, own in by_label.items() if len(own) > 1}
    if held_out:
        apart[HELD_OUT] = [episode for own in apart.values() for episode in own]
    texts = {_question(episode) for own in apart.values() for episode in own}
    left = [episode for episode in episodes if _question(episode) not in texts]
    if held_out and not (left and texts):
        raise Stop(
            f"sft.held_out holds {len(texts)} questions out of {len(episodes)} rows and leaves {len(left)} rows.",
            "Collect more episodes, or lower sft.held_out.",
        )
    return left, apart


def _question(episode: Episode) -> str:
    return same_text(episode["messages"][1]["content"])


def _evaluation(an_epoch: int, spec: SftSpec) -> dict[str, Any]:
    """Evaluates by steps: at an epoch's end TRL evaluates after the checkpoint, so a resumed training would skip it."""
    best = {"metric_for_best_model": HELD_OUT_LOSS, "greater_is_better": False} if spec.held_out else {}
    return {"eval_strategy": "steps", "eval_steps": an_epoch, "per_device_eval_batch_size": spec.batch_size} | best


def _stop_at(trainer: Any, enough: float) -> None:
    def on_log(_args: Any, _state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        control.should_training_stop |= float((logs or {}).get("mean_token_accuracy", 0.0)) >= enough

    call_back(trainer, on_log=on_log)
