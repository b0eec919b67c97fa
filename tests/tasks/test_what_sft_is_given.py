"""What SFT's stage hands to the model: an evaluation's prompt, whole episodes, loss on the assistant's turns only."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trl

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import LengthStats
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.trl_arguments import field_of
from apprentice.tasks.sft import sft
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made

SPEC = SftSpec(
    batch_size=2,
    gradient_accumulation=3,
    learning_rate=3e-4,
    scheduler="linear",
    warmup_steps=1,
    adam_epsilon=1e-7,
    adam_beta2=0.9,
    epochs=2,
    max_rows=12,
    logging_steps=1,
    checkpoint_steps=2,
)
"""No value is the default of TRL."""
DEVICE = ("sft.gradient_checkpointing", "sft.accelerate_config", "sft.liger", "sft.bf16")


class Row(NamedTuple):
    """A row of a batch, without its padding."""

    ids: list[int]
    learned: list[int]
    """The tokens with loss."""


class Fed(NamedTuple):
    trainer: Any
    rows: list[Row]


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers, report_to=[]), TASKS["chain_sum"], folder)


def fed(made: Made, name: str, spec: SftSpec, lengths: LengthStats, seed: int = 0) -> Fed:
    """Runs the stage with a trainer that notes its batches."""
    trainers, rows = [], []

    class Noting(trl.SFTTrainer):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            trainers.append(self)
            for ids, labels, real in zip(inputs["input_ids"], inputs["labels"], inputs["attention_mask"], strict=True):
                rows.append(Row(ids[real.bool()].tolist(), labels[labels != -100].tolist()))
            return super().compute_loss(model, inputs, *given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trl.SFTTrainer", Noting)
        sft.body(made.context(name), spec, made.base, made.kept, lengths, seed)
    return Fed(trainers[0], rows)


@pytest.fixture(scope="module")
def whole(made: Made) -> Fed:
    return fed(made, "whole", SPEC, made.lengths)


@pytest.fixture(scope="module")
def tokenizer(made: Made) -> Any:
    return load_tokenizer(made.work.store.fetch(made.base))


@pytest.fixture
def kept(made: Made) -> Iterator[dict[str, Any]]:
    with (made.work.store.fetch(made.kept) / "kept.jsonl").open() as lines:
        return map(json.loads, lines.readlines()[: SPEC.max_rows])


def test_every_row_begins_with_the_prompt_of_an_evaluation(whole: Fed, tokenizer: Any, kept: Iterator[dict[str, Any]]):
    for episode in kept:
        prompt = prompt_ids(tokenizer, episode["messages"][:2], json.loads(episode["tools"]))
        assert sum(row.ids[: len(prompt)] == prompt for row in whole.rows) == SPEC.epochs, episode["seed"]


def test_the_assistants_turns_carry_loss_and_nothing_else_does(whole: Fed, tokenizer: Any):
    assert len(whole.rows) == 2 * 12
    for row in whole.rows:
        written = r"<\|im_start\|>assistant\n<think>\n\n</think>\n\n(.*?<\|im_end\|>)"  # after the generation prompt
        turns = re.findall(written, tokenizer.decode(row.ids), re.S)
        assert len(turns) == 3, "a call, the turn after it, and the closing one"
        assert tokenizer.decode(row.learned) == "".join(turns)


def test_a_row_is_cut_at_the_length_that_was_measured(made: Made, whole: Fed):
    longest = max(len(row.ids) for row in whole.rows)
    assert longest < 512
    cut = made.lengths.model_copy(update={"max_length": longest - 2})
    one_step = SPEC.model_copy(update={"epochs": 0.5})
    assert max(len(row.ids) for row in fed(made, "cut", one_step, cut).rows) == longest - 2


def test_every_setting_reaches_the_trainer(whole: Fed):
    args, compared = whole.trainer.args, []
    for name in vars(args):
        section, _, field = (field_of(SftSpec, name) or "").partition(".")
        if section == "sft" and f"sft.{field}" not in DEVICE:
            assert getattr(args, name) == getattr(SPEC, field), name
            compared.append(name)
    assert len(compared) == 10
    assert args.seed == 0


def test_the_rows_come_in_the_order_of_the_seed(made: Made, whole: Fed, tmp_path: Path):
    one_step = SPEC.model_copy(update={"epochs": 0.5})
    again, other = (fed(made, f"seed-{seed}", one_step, made.lengths, seed) for seed in (0, 1))
    assert again.rows == whole.rows[: len(again.rows)]
    assert other.rows != again.rows


def test_a_training_shorter_than_its_warmup_and_its_first_log_has_both(made: Made, monkeypatch: pytest.MonkeyPatch):
    warnings: list[str] = []
    monkeypatch.setattr(announce, "warn", warnings.append)
    spec = SPEC.model_copy(update={"warmup_steps": 10, "logging_steps": 10, "checkpoint_steps": 10})
    trainer = fed(made, "short", spec, made.lengths).trainer
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert len(logged) == trainer.state.global_step == 4
    assert logged[0] == SPEC.learning_rate, "it begins at the peak"
    assert [line.partition(":")[0] for line in warnings] == [
        "The training has 4 steps, and warmup_steps is 10",
        "The training has 4 steps, and logging_steps is 10",
    ]
