"""A training that is sharded over two processes (FSDP2, on the CPU) publishes the weights of one that is not."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.files import digest
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import BaseStudent
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.sft import train_sft
from apprentice.tasks.training.trainer import newest_checkpoint, read_log
from apprentice.tasks.training.whole_checkpoints import LIST, step_of, write_list
from tests.conftest import TASKS
from tests.tasks.bodies import (
    SPEC,
    one_after_another,
    second_is_killed_in_a_step,
    second_loses_its_server,
    second_says_less,
    second_writes_late,
)
from tests.tasks.engine.test_processes import SEED, TWO_GRPO, TWO_SFT, Made, weights

pytestmark = pytest.mark.long

SHARDS = Path(__file__).parents[3] / "deployments/accelerate/fsdp2-cpu.yaml"
SHARDED = {"accelerate_config": SHARDS}
CLOSE = 1e-6
"""Gloo adds the gradients of the two processes in another order. Measured: 6e-8 after three steps of SFT."""
SAVING_SFT = TWO_SFT.model_copy(update={"checkpoint_steps": 1})
SAVING_GRPO = TWO_GRPO.model_copy(
    update={"checkpoint_steps": 1, "max_completion_length": 24, "args": {"entropy_coef": 1.0}}
)
"""The model generates the completions. A random model has no rewards to learn from, so it learns from its entropy."""


@pytest.fixture(scope="module")
def made(server: EnvironmentServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    servers = StandingServers({"reasoning_gym": server}, None)
    return Made(RunContext(LocalStore(folder / "artifacts", "toy"), servers), TASKS["chain_sum"], folder)


def untied(made: Made) -> Any:
    """The base student with an output layer of its own."""
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    folder, context = made.work.store.fetch(made.base), made.context("untied-base")
    set_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, tie_word_embeddings=False))
    counts = save(model, load_tokenizer(folder), context.out)
    return made.work.store.publish(BaseStudent, "untied", context.out, counts, {})


class Trained(NamedTuple):
    """By name, what two processes left with the whole model in each, and with a shard in each."""

    whole: dict[str, StageContext]
    sharded: dict[str, StageContext]
    kept: dict[str, int]
    """Finished steps of the newest checkpoint that an interrupted training left."""


@pytest.fixture(scope="module")
def trained(made: Made) -> Trained:
    """SFT of a tied and of an untied model, and GRPO. Sharded ones are also interrupted in the third step and resumed:
    SFT and GRPO whose second process is killed, and a GRPO whose second process loses its server."""

    def sft(base: Any) -> tuple[Any, ...]:
        return train_sft, (SAVING_SFT, base, made.kept, made.lengths, 0)

    asked = made.base, TASKS["chain_sum"], made.questions, SEED
    grpo = second_says_less, (SAVING_GRPO, *asked)
    jobs = {"sft": sft(made.base), "untied": sft(untied(made)), "grpo": grpo}
    whole = {name: made.context(f"{name}-whole") for name in jobs}
    rarely = SAVING_GRPO.model_copy(update={"checkpoint_steps": 50})
    jobs |= {"killed sft": jobs["sft"], "killed grpo": grpo, "lost grpo": (second_says_less, (rarely, *asked))}
    sharded = {name: made.context(f"{name}-sharded") for name in jobs}
    two, kept = SPEC.model_copy(update=SHARDED), {}
    for name in ("killed sft", "killed grpo", "lost grpo"):
        body, given = jobs[name]
        if name.startswith("killed"):
            with pytest.raises(ProcessDied, match="Signal 9"):
                on_processes(two, second_is_killed_in_a_step, sharded[name], body, 2, *given)
        else:
            with pytest.raises(Stop, match="GRPO lost the environment"):
                on_processes(two, second_loses_its_server, sharded[name], body, *given)
        kept[name] = step_of(newest_checkpoint(sharded[name].scratch))
    for folders, spec in ((whole, SPEC), (sharded, two)):
        each = [(jobs[name][0], (at.key, at.out, at.scratch), jobs[name][1]) for name, at in folders.items()]
        at = made.context("whole" if folders is whole else "sharded")
        on_processes(spec, one_after_another, at, TASKS["chain_sum"], *each)
    return Trained(whole, sharded, kept)


@pytest.mark.parametrize("name", ["sft", "untied", "grpo"])
def test_a_sharded_training_publishes_the_weights_of_one_that_is_not_sharded(trained: Trained, name: str):
    import torch

    whole, sharded = trained.whole[name], trained.sharded[name]
    ours, theirs = weights(whole), weights(sharded)
    assert theirs.keys() == ours.keys()
    for weight, tensor in ours.items():
        torch.testing.assert_close(theirs[weight], tensor, rtol=0.0, atol=CLOSE)
    before, after = (read_log(context.out) for context in (whole, sharded))
    assert [entry["loss"] for entry in after] == pytest.approx([entry["loss"] for entry in before], rel=1e-5)
    assert (sharded.out / "learned.jsonl").read_text() == (whole.out / "learned.jsonl").read_text()
    files = [{file.name for file in context.out.iterdir()} for context in (whole, sharded)]
    assert files[0] == files[1]
    saved = {file.name for file in sharded.scratch.glob("checkpoint-*/*")}
    assert "pytorch_model_fsdp.bin" in saved, "nothing was sharded"


@pytest.mark.parametrize("name", ["sft", "untied", "grpo"])
def test_what_a_sharded_training_publishes_is_loaded_by_transformers_in_one_process(
    trained: Trained, made: Made, name: str
):
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.arange(40).view(2, 20)
    said = []
    for context in (trained.sharded[name], trained.whole[name]):
        loaded: Any = AutoModelForCausalLM.from_pretrained(context.out, output_loading_info=True)
        model, about = loaded
        assert not any(about.values()), "weights are missing, or are left over"
        assert model.config.tie_word_embeddings == (name != "untied")
        with torch.no_grad():
            said.append(model.eval()(ids).logits)
    torch.testing.assert_close(said[0], said[1], rtol=0.0, atol=1e-5)
    base = load_model(made.work.store.fetch(made.base))
    assert not torch.allclose(said[0], base.eval()(ids).logits, atol=1e-2), "nothing was learned"


def test_processes_generate_completions_of_different_lengths_from_their_shards(trained: Trained):
    """A process whose completions have ended continues to gather shards for the other one."""
    whole, sharded = (each["grpo"].out / "completions.jsonl" for each in (trained.whole, trained.sharded))
    assert sharded.read_text() == whole.read_text()
    log = read_log(trained.sharded["grpo"].out)
    most = SAVING_GRPO.max_completion_length
    assert all(entry["completions/min_length"] <= most // 3 < entry["completions/max_length"] for entry in log)


@pytest.mark.parametrize("name", ["killed sft", "killed grpo", "lost grpo"])
def test_a_sharded_training_that_was_interrupted_ends_as_one_that_was_not_bit_for_bit(trained: Trained, name: str):
    assert trained.kept[name] == 2
    whole, resumed = trained.sharded[name.split()[1]], trained.sharded[name]
    assert digest(resumed.out, "*.safetensors") == digest(whole.out, "*.safetensors")
    assert (resumed.out / "log.json").read_text() == (whole.out / "log.json").read_text()


def test_a_sharded_training_that_had_ended_publishes_the_same_again(trained: Trained, made: Made):
    again = trained.sharded["sft"]
    published = digest(again.out, "*.safetensors")
    (again.out / "model.safetensors").unlink()
    spec = SAVING_SFT.model_copy(update=SHARDED)
    on_processes(spec, train_sft, again, spec, made.base, made.kept, made.lengths, 0)
    assert digest(again.out, "*.safetensors") == published


def test_a_checkpoint_is_sealed_when_all_processes_have_written(made: Made):
    context = made.context("late")
    on_processes(TWO_SFT, second_writes_late, context, TWO_SFT, made.base, made.kept, made.lengths, 0)
    (checkpoint,) = context.scratch.glob("checkpoint-*")
    listed = (checkpoint / LIST).read_text()
    assert {"rng_state_0.pth", "rng_state_1.pth"} < json.loads(listed).keys()
    write_list(checkpoint)
    assert (checkpoint / LIST).read_text() == listed, "a file was written after the list"
