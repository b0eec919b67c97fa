"""A training that is sharded over two processes publishes the weights of one that is not.

FSDP2, and ZeRO-3 where DeepSpeed is installed; on the CPU.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.store_files import digest
from apprentice.tasks.artifacts.types import BaseStudent
from apprentice.tasks.engine.processes import on_processes
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.models.checkpoints import load_model, save
from apprentice.tasks.models.tokenizer import load_tokenizer
from apprentice.tasks.reporting.errors import ProcessDied, Stop
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.sft import train_sft
from apprentice.tasks.training.complete_checkpoints import LIST, newest_checkpoint, step_of, write_list
from apprentice.tasks.training.trainer import read_log
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

CONFIGS = Path(__file__).parents[3] / "deployments/accelerate"
OF_SHARDS = {"fsdp2-cpu": "pytorch_model_fsdp.bin", "zero3-cpu": "zero_pp_rank_1_mp_rank_00_optim_states.pt"}
"""By configuration, a file that only a sharded training has in its checkpoints."""
CLOSE = 1e-6
"""The gradients of the two processes are added in another order. Measured: FSDP2 6e-8, ZeRO-3 1.2e-7."""
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


Job = tuple[Any, tuple[Any, ...]]
"""A stage's body and what it is given."""


@pytest.fixture(scope="module")
def jobs(made: Made) -> dict[str, Job]:
    """SFT of a tied and of an untied model, and GRPO."""

    def sft(base: Any) -> Job:
        return train_sft, (SAVING_SFT, base, made.kept, made.lengths, 0)

    grpo = second_says_less, (SAVING_GRPO, made.base, TASKS["chain_sum"], made.questions, SEED)
    return {"sft": sft(made.base), "untied": sft(untied(made)), "grpo": grpo}


@pytest.fixture(scope="module")
def whole(made: Made, jobs: dict[str, Job]) -> dict[str, StageContext]:
    """What two processes leave with the whole model in each."""
    left = {name: made.context(name) for name in jobs}
    one_by_one(made.context("whole"), SPEC, jobs, left)
    return left


class Sharded(NamedTuple):
    """What two processes left with a shard in each."""

    config: Path
    left: dict[str, StageContext]
    kept: dict[str, int]
    """Finished steps of the newest checkpoint that an interrupted training left."""


@pytest.fixture(
    scope="module",
    params=[
        "fsdp2-cpu",
        pytest.param("zero3-cpu", marks=pytest.mark.skipif(find_spec("deepspeed") is None, reason="has no DeepSpeed")),
    ],
)
def sharded(made: Made, jobs: dict[str, Job], request: pytest.FixtureRequest) -> Sharded:
    """Some are also interrupted in the third step and resumed: SFT and GRPO whose second process is killed, and a GRPO
    whose second process loses its server."""
    config = CONFIGS / f"{request.param}.yaml"
    two = SPEC.model_copy(update={"accelerate_config": config})
    body, (spec, *arguments) = jobs["grpo"]
    rarely = spec.model_copy(update={"checkpoint_steps": 50})
    jobs = jobs | {"killed sft": jobs["sft"], "killed grpo": jobs["grpo"], "lost grpo": (body, (rarely, *arguments))}
    left = {name: made.context(f"{name}-{config.stem}") for name in jobs}
    for name in ("killed sft", "killed grpo"):
        body, given = jobs[name]
        with pytest.raises(ProcessDied, match="Signal 9"):
            on_processes(two, second_is_killed_in_a_step, left[name], body, 2, *given)
    body, given = jobs["lost grpo"]
    with pytest.raises(Stop, match="GRPO lost the environment"):
        on_processes(two, second_loses_its_server, left["lost grpo"], body, *given)
    kept = {name: step_of(newest_checkpoint(at.scratch)) for name, at in left.items() if " " in name}
    one_by_one(made.context(config.stem), two, jobs, left)
    return Sharded(config, left, kept)


def one_by_one(context: StageContext, spec: TrainerSpec, jobs: dict[str, Job], left: dict[str, StageContext]) -> None:
    each = [(body, (left[name].key, left[name].out, left[name].scratch), given) for name, (body, given) in jobs.items()]
    on_processes(spec, one_after_another, context, TASKS["chain_sum"], *each)


@pytest.mark.parametrize("name", ["sft", "untied", "grpo"])
def test_a_sharded_training_publishes_the_weights_of_one_that_is_not_sharded(
    whole: dict[str, StageContext], sharded: Sharded, name: str
):
    import torch

    one, other = whole[name], sharded.left[name]
    ours, other_weights = weights(one), weights(other)
    assert other_weights.keys() == ours.keys()
    for weight, tensor in ours.items():
        torch.testing.assert_close(other_weights[weight], tensor, rtol=0.0, atol=CLOSE)
    before, after = (read_log(context.out) for context in (one, other))
    assert [entry["loss"] for entry in after] == pytest.approx([entry["loss"] for entry in before], rel=1e-5)
    assert (other.out / "learned.jsonl").read_text() == (one.out / "learned.jsonl").read_text()
    files = [{file.name for file in context.out.iterdir()} for context in (one, other)]
    assert files[0] == files[1]
    in_checkpoints = {file.name for file in other.scratch.glob("checkpoint-*/**/*")}
    assert OF_SHARDS[sharded.config.stem] in in_checkpoints, "nothing was sharded"


@pytest.mark.parametrize("name", ["sft", "untied", "grpo"])
def test_what_a_sharded_training_publishes_is_loaded_by_transformers_in_one_process(
    whole: dict[str, StageContext], sharded: Sharded, made: Made, name: str
):
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.arange(40).view(2, 20)
    said = []
    for context in (sharded.left[name], whole[name]):
        loaded: Any = AutoModelForCausalLM.from_pretrained(context.out, output_loading_info=True)
        model, about = loaded
        assert not any(about.values()), "weights are missing, or are left over"
        assert model.config.tie_word_embeddings == (name != "untied")
        with torch.no_grad():
            said.append(model.eval()(ids).logits)
    torch.testing.assert_close(said[0], said[1], rtol=0.0, atol=1e-5)
    base = load_model(made.work.store.fetch(made.base))
    assert not torch.allclose(said[0], base.eval()(ids).logits, atol=1e-2), "nothing was learned"


def test_processes_generate_completions_of_different_lengths_from_their_shards(
    whole: dict[str, StageContext], sharded: Sharded
):
    """A process whose completions have ended continues to gather shards for the other one."""
    completions = [(left["grpo"].out / "completions.jsonl").read_text() for left in (whole, sharded.left)]
    assert completions[0] == completions[1]
    most = SAVING_GRPO.max_completion_length
    log = read_log(sharded.left["grpo"].out)
    assert all(entry["completions/min_length"] <= most // 3 < entry["completions/max_length"] for entry in log)


@pytest.mark.parametrize("name", ["killed sft", "killed grpo", "lost grpo"])
def test_a_sharded_training_that_was_interrupted_ends_as_one_that_was_not_bit_for_bit(sharded: Sharded, name: str):
    assert sharded.kept[name] == 2
    straight, resumed = sharded.left[name.split()[1]], sharded.left[name]
    assert digest(resumed.out, "*.safetensors") == digest(straight.out, "*.safetensors")
    assert (resumed.out / "log.json").read_text() == (straight.out / "log.json").read_text()


def test_a_sharded_training_that_had_ended_publishes_the_same_again(sharded: Sharded, jobs: dict[str, Job]):
    """Killed between its last step and the artifact's publication."""
    again, (body, given) = sharded.left["sft"], jobs["sft"]
    published = digest(again.out, "*.safetensors")
    (again.out / "model.safetensors").unlink()
    on_processes(SPEC.model_copy(update={"accelerate_config": sharded.config}), body, again, *given)
    assert digest(again.out, "*.safetensors") == published


def test_a_checkpoint_is_sealed_when_all_processes_have_written(made: Made):
    context = made.context("late")
    on_processes(TWO_SFT, second_writes_late, context, TWO_SFT, made.base, made.kept, made.lengths, 0)
    (checkpoint,) = context.scratch.glob("checkpoint-*")
    listed = (checkpoint / LIST).read_text()
    assert {"rng_state_0.pth", "rng_state_1.pth"} < json.loads(listed).keys()
    write_list(checkpoint)
    assert (checkpoint / LIST).read_text() == listed, "a file was written after the list"
