"""SFT with held-out rows publishes its best epoch; the control is such an SFT on the same rollouts, not stopped."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.analysis.curve_signals import as_lines, read_signals
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import KeptRollouts
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.files.question_lists import read_learned
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.sft import sft, train_eval_split
from apprentice.tasks.training.complete_checkpoints import newest_checkpoint, step_of
from tests.conftest import TASKS
from tests.tasks.engine.test_processes import Made
from tests.tasks.test_held_apart import episode, episodes

STEPS_OF_AN_EPOCH = 5
BEST = SftSpec(
    batch_size=4,
    gradient_accumulation=1,
    learning_rate=3e-2,
    scheduler="constant",
    warmup_steps=0,
    epochs=10,
    held_out=0.25,
    logging_steps=2,
    checkpoint_steps=4,
)


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """24 kept rollouts; the answer of the first 18 is not that of the rest, so the surer the model, the worse there."""
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    made = Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers), TASKS["chain_sum"], folder)
    store, out = made.work.store, made.context("contrary").out
    rows = [json.loads(line) for line in (store.fetch(made.kept) / "kept.jsonl").open()]
    for place, row in enumerate(rows):
        row["messages"][2]["tool_calls"][0]["function"]["arguments"] = {"answer": "777" if place < 18 else "222"}
    (out / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.kept = store.publish(KeptRollouts, "contrary", out, {"episodes": 24, "kept": 24, "dropped": {}}, {})
    return made


@pytest.fixture(scope="module")
def trained(made: Made) -> StageContext:
    context = made.context("best")
    train(made, context)
    return context


def train(made: Made, context: StageContext, spec: SftSpec = BEST) -> dict[str, Any]:
    return sft.body(context, spec, made.base, made.kept, made.lengths, 0)


def left_by(context: StageContext) -> tuple[str, Any, Any]:
    log = json.loads((context.out / "log.json").read_text())
    return digest(context.out, "*.safetensors"), log, read_signals(context.out)


def test_the_epoch_with_the_lowest_held_out_loss_is_published(trained: StageContext):
    weights, log, signals = left_by(trained)
    losses = {entry["step"]: entry["eval_held_out_loss"] for entry in log if "eval_held_out_loss" in entry}
    assert list(losses) == [STEPS_OF_AN_EPOCH * epoch for epoch in range(1, 11)]
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert losses[best] < losses[last], "the last epoch was to be worse"
    assert weights == digest(trained.scratch / f"checkpoint-{best}", "*.safetensors")
    assert not (trained.scratch / f"checkpoint-{last}").exists(), "nothing loads the weights of a worse epoch"
    assert (signals["published_step"], signals["trained_steps"]) == (best, last)
    assert signals["held_out_loss"] == losses[best]
    assert f"the weights of step {best} are kept, which had the best held-out loss" in as_lines(signals)[-1]


def test_a_published_model_generates_with_a_cache_which_transformers_trainer_turns_off(trained: StageContext):
    [in_training] = {json.loads(file.read_text())["use_cache"] for file in trained.scratch.glob("*/config.json")}
    assert not in_training
    assert json.loads((trained.out / "config.json").read_text())["use_cache"]


def test_sft_stops_after_epochs_without_gain_and_publishes_the_same_weights(made: Made, trained: StageContext):
    weights, log, signals = left_by(trained)
    context = made.context("without-gain")
    train(made, context, BEST.model_copy(update={"stop_without_gain": 3}))
    sooner, shorter, same = left_by(context)
    best = signals["published_step"]
    assert (sooner, same["published_step"]) == (weights, best)
    assert same["trained_steps"] == best + 3 * STEPS_OF_AN_EPOCH < signals["trained_steps"]
    assert shorter == [entry for entry in log if entry["step"] <= same["trained_steps"]]


def test_a_gain_is_refused_where_no_row_is_held_out():
    with pytest.raises(ValidationError, match=r"set sft\.held_out: 0\.1, or drop it"):
        SftSpec(stop_without_gain=2)


def test_what_is_held_out_is_not_learned_from(made: Made, trained: StageContext):
    with (made.work.store.fetch(made.kept) / "kept.jsonl").open() as lines:
        seeds = [json.loads(line)["seed"] for line in lines]
    assert [row["seed"] for row in read_learned(trained.out)] == seeds[:18]


@pytest.mark.long
@pytest.mark.parametrize(("at", "kept"), [(8, 5), (14, 12), (48, 44)])
def test_an_interrupted_training_ends_with_the_same_bits(
    made: Made, trained: StageContext, monkeypatch: pytest.MonkeyPatch, at: int, kept: int
):
    """Resumed from the checkpoint of the best epoch, between two logs, and from those within an epoch."""
    import trl

    class Interrupted(trl.SFTTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            if self.state.global_step + 1 == at:
                raise KeyboardInterrupt
            return super().training_step(*given, **named)

    context = made.context(f"interrupted-{at}")
    with monkeypatch.context() as patched:
        patched.setattr("trl.SFTTrainer", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(made, context)
    assert step_of(newest_checkpoint(context.scratch)) == kept
    train(made, context)
    assert left_by(context) == left_by(trained)


def test_a_tenth_of_the_rows_is_held_out_of_an_environment_alone():
    alone = [episode(seed, "echo 1") for seed in range(40)]
    left, apart = train_eval_split(alone, 0.1)
    assert (left, apart) == (alone[:36], {"held_out": alone[36:]})


def test_of_a_mixture_each_environment_gives_its_share():
    left, apart = train_eval_split(episodes(a=40, b=10), 0.1)
    assert {label: len(own) for label, own in apart.items()} == {"a": 4, "b": 1, "held_out": 5}
    assert len(left) == 45


def test_too_few_rows_are_a_clear_stop():
    with pytest.raises(Stop, match=r"holds 0 questions out of 1 rows and leaves 1 rows\.\n→ Collect more episodes"):
        train_eval_split([episode(0, "echo 1")], 0.1)
    with pytest.raises(Stop, match=r"holds 1 questions out of 9 rows and leaves 0 rows"):
        train_eval_split([episode(seed, "echo 1", "the same") for seed in range(9)], 0.1)


@pytest.mark.parametrize(
    ("settings", "has_one"),
    [
        ({}, False),
        ({"stop_at_token_accuracy": 0.9}, True),
        ({"max_rows": 10}, True),
        ({"max_rows": 10, "control": False}, False),
        ({"control": True}, True),
    ],
)
def test_sft_that_ends_early_has_a_control_that_does_not(settings: dict[str, Any], has_one: bool):
    spec = SftSpec(epochs=7, **settings)
    best = spec.to_its_best()
    assert (best is not None) == has_one
    if best is not None:
        assert (best.stop_at_token_accuracy, best.max_rows, best.held_out, best.epochs) == (None, None, 0.1, 7)
    assert "control" not in spec.in_key()


def test_held_out_changes_the_key_only_where_it_is_given():
    assert {"held_out", "stop_without_gain"}.isdisjoint(SftSpec().in_key())
    assert SftSpec(held_out=0.2).in_key()["held_out"] == 0.2


def test_a_control_with_held_out_rows_of_the_recipe_keeps_their_share():
    best = SftSpec(held_out=0.2, stop_at_token_accuracy=0.9).to_its_best()
    assert best is not None
    assert best.held_out == 0.2
