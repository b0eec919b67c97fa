"""DPO on the pairs that GRPO leaves behind: a right and a wrong episode of the same question (Rafailov et al., 2023).

In: the last checkpoint, and the GRPO checkpoint with groups.jsonl. Out: `DpoCheckpoint`: weights, tokenizer, log.json,
curves.png, signals.json. Runs TRL's DPOTrainer. Both episodes of a pair begin with the same prompt ids, a lost episode
is on neither side, and only the tokens that the model wrote have a loss, so none of a tool's reply.
"""

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from apprentice.envs.reward import is_right
from apprentice.tasks.artifacts.types import Checkpoint, ModelName
from apprentice.tasks.dpo_settings import DpoCheckpoint, DpoSpec
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.example import example_episode
from apprentice.tasks.episodes.rendering import IGNORED, labelled, prompt_ids, written_row
from apprentice.tasks.episodes.thinking import is_cut_off
from apprentice.tasks.models.checkpoints import adapter_arguments, model_to_train
from apprentice.tasks.models.memory import check_training, explained_oom, this_machine
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.models.trl_internals import on_one_gpu
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rollouts.groups import read_groups
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.first_step import TOY, check_arguments, check_scheduler, config_of_a_step
from apprentice.tasks.training.method import Curve, RunSoFar, Start, Training
from apprentice.tasks.training.trainer import arguments, finish, train
from apprentice.tasks.training.watcher import select_weights, watch

Row = dict[str, Any]


@stage(produces=DpoCheckpoint, version=1, title="DPO", drawn=Drawn("DPO"), gpu=True)
def dpo(context: StageContext, spec: DpoSpec, checkpoint: Checkpoint, played: Checkpoint, seed: int) -> dict[str, Any]:
    """Trains for `spec.epochs` epochs.

    Args:
        played: The checkpoint of the training that kept its groups.

    Raises Stop where no group has a right and a wrong episode.
    """
    check_training(spec, this_machine())
    check_scheduler(spec)
    pairs = list(pairs_of(context.fetch(played), spec.pairs_a_group))
    if not pairs:
        raise Stop(
            "DPO has no pairs: no group of GRPO has a right and a wrong episode.",
            "Set grpo.keep_groups: true, and choose a task that GRPO finds neither too easy nor too hard.",
        )
    if spec.args:
        tokenizer = load_tokenizer(context.fetch(checkpoint), context.run.trusted)
        tools = json.loads(pairs[0][0]["tools"])
        check_arguments(spec, lambda given: first_step(spec, given, tokenizer, tools))
    with explained_oom(spec):
        return on_processes(spec, train_dpo, context, spec, checkpoint, pairs, seed)


def train_dpo(
    context: StageContext, spec: DpoSpec, checkpoint: Checkpoint, pairs: list[tuple[Row, Row]], seed: int
) -> dict[str, Any]:
    """The stage's body, in each of its processes."""
    from datasets import Dataset
    from transformers import set_seed

    set_seed(seed)
    folder = context.fetch(checkpoint)
    tokenizer = load_tokenizer(folder, context.run.trusted)
    rows = [preference(tokenizer, *pair) for pair in pairs]
    config = config_of(type(spec), dpo_arguments(context, spec, seed), spec.args)
    trainer = made_trainer(
        on_one_gpu(config),
        tokenizer,
        model_to_train(folder, spec, context.run.trusted),
        None if spec.lora else model_to_train(folder, spec, context.run.trusted),
        **adapter_arguments(spec.lora),
    )
    trainer.train_dataset = Dataset.from_list(rows)
    watch(trainer, spec.signals)
    a_step = spec.batch_size * spec.gradient_accumulation * spec.processes
    train(context, "DPO steps", trainer, max(1, math.ceil(spec.epochs * math.ceil(len(rows) / a_step))))
    select_weights(context, trainer, spec.signals)
    questions = {right["seed"]: right["messages"][1]["content"] for right, _ in pairs}
    shown = {metric: curve.title for metric, curve in CURVES.items()}
    return finish(context, trainer, spec, shown, questions.items(), folder)


def pairs_of(checkpoint: Path, most: int) -> Iterator[tuple[Row, Row]]:
    """Yields pairs of a right and a wrong episode of one group, at most so many of each group. None with a thought that
    was cut off is among them."""
    for group in read_groups(checkpoint):
        right = [row for row in group if is_right(row["reward"])]
        # rendered again, a turn that was cut off within its thought would end, which the model did not write
        wrong = [row for row in group if not is_right(row["reward"]) and not is_cut_off(row["messages"])]
        yield from list(zip(right, wrong, strict=False))[:most]


def preference(tokenizer: Any, right: Row, wrong: Row) -> dict[str, list[int]]:
    """A pair as TRL's collator takes it, and for both sides which tokens have a loss."""
    tools = json.loads(right["tools"])
    begin = prompt_ids(tokenizer, right["messages"][:2], tools)
    found: dict[str, list[int]] = {"prompt_ids": begin}
    for side, row in (("chosen", right), ("rejected", wrong)):
        own = labelled(tokenizer, written_row(row["messages"], tools))  # it did not write the closing turn
        found[f"{side}_ids"] = own["input_ids"][len(begin) :]
        found[f"{side}_loss"] = [int(label != IGNORED) for label in own["labels"][len(begin) :]]
    return found


@cache
def _collator() -> type:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    class OwnTokens(DataCollatorForPreference):
        """Without a loss on what a tool replied."""

        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super().torch_call(examples)
            sides = [(each, side) for side in ("chosen", "rejected") for each in examples]
            for row, (each, side) in zip(batch["completion_mask"], sides, strict=True):
                begin = len(each["prompt_ids"])
                for place, has_loss in enumerate(each[f"{side}_loss"], begin):
                    row[place] = has_loss
            return batch

    return OwnTokens


def made_trainer(config: Any, tokenizer: Any, model: Any, reference: Any, **adapters: Any) -> Any:
    """TRL's trainer without rows. It tokenizes what it is given, so it is given two words; ours are token ids."""
    from datasets import Dataset
    from trl import DPOTrainer

    said = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    return DPOTrainer(
        model=model,
        ref_model=reference,
        args=config,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "user"}], **said}]),
        data_collator=_collator()(pad_token_id=tokenizer.pad_token_id),
        **adapters,
    )


def dpo_arguments(context: StageContext, spec: DpoSpec, seed: int) -> dict[str, Any]:
    """The arguments of DPOConfig, without the recipe's `args`."""
    return {
        **arguments(context, spec, seed),
        "num_train_epochs": spec.epochs,
        "beta": spec.beta,
        "max_length": None,
        "remove_unused_columns": False,  # the collator reads which tokens have a loss
    }


def first_step(spec: DpoSpec, given: dict[str, Any], tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Makes a step of DPO on a toy model."""
    from datasets import Dataset

    messages = example_episode(tools[0]["function"])
    right = {"messages": messages, "tools": json.dumps(tools)}
    wrong = right | {"messages": messages[:4]}
    with config_of_a_step(spec, {"per_device_train_batch_size": 1, "remove_unused_columns": False}, given) as config:
        model, reference = (built_model(TOY, tokenizer, seed=0) for _ in range(2))
        trainer = made_trainer(config, tokenizer, model, reference)
        trainer.train_dataset = Dataset.from_list([preference(tokenizer, right, wrong)] * 2)
        trainer.train()


def start(spec: DpoSpec, made: RunSoFar) -> Start | None:
    """DPO goes on from the last model; not where GRPO did not start."""
    played = made.models.get(ModelName.GRPO)
    return None if played is None else Start(spec, (made.models.last, played, made.seed))


CURVES = {
    "loss": Curve("loss", ("nan",)),
    "rewards/margins": Curve("margin between right and wrong"),
    "rewards/accuracies": Curve("pairs in the right order"),
}
DPO = Training(
    DpoSpec,
    DpoCheckpoint,
    dpo,
    start,
    lambda context, spec, _environment, seed: dpo_arguments(context, spec, seed),
    first_step,
    curves=CURVES,
)
