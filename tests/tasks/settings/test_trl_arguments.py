"""A recipe can say anything to TRL that it has no field for; what is ours, unknown or of another type is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo_arguments
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec, HeldOut
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.trl_arguments import _SHARED, config_of, field_of
from apprentice.tasks.sft import _evaluation, sft_arguments
from apprentice.tasks.trainings import TRAININGS


@pytest.fixture
def context(work: RunContext, tmp_path: Path) -> StageContext:
    return StageContext(work, "0" * 20, tmp_path / "out", tmp_path / "scratch")


def test_an_argument_enters_the_key_only_where_it_is_given():
    assert "args" not in SftSpec().in_key()
    assert "args" not in SftSpec().in_record()
    assert SftSpec(args={"weight_decay": 0.01}).in_key()["args"] == {"weight_decay": 0.01}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"losstype": "grpo"}, "TRL's GRPOConfig has no argument losstype; did you mean loss_type?"),
        ({"epsilon": "high"}, "epsilon: 'high' is not of the type float"),
        ({"epsilon": float("nan")}, "epsilon: nan is not of the type float"),
        ({"num_iterations": True}, "num_iterations: True is not of the type int"),
        ({"optim_target_modules": [1]}, "optim_target_modules: [1] is not of the type"),
        ({"learning_rate": 0.1}, "learning_rate is set by apprentice; set grpo.learning_rate"),
        ({"vllm_mode": "server"}, "vllm_mode is set by apprentice; set grpo.generation.mode"),
        ({"eval_steps": 3}, "eval_steps is set by apprentice; set grpo.held_out"),
        ({"report_to": "wandb"}, "report_to is set by apprentice; set report_to"),
        ({"output_dir": "/tmp"}, "output_dir is set by apprentice; set store.path"),
        ({"run_name": "mine"}, "run_name is set by apprentice; it follows from the recipe's other fields"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_trl_does_not_take_or_we_set_is_refused_with_what_to_do(args: dict[str, object], words: str):
    with pytest.raises(ValidationError) as error:
        GrpoSpec(args=args)
    assert words in str(error.value)


def test_what_is_given_reaches_trl(context: StageContext):
    spec = GrpoSpec(args={"loss_type": "grpo", "epsilon_high": 0.28, "lr_scheduler_kwargs": {"power": 2}})
    config = config_of(GrpoSpec, grpo_arguments(context, spec, 0), spec.args)
    assert (config.loss_type, config.epsilon_high, config.lr_scheduler_kwargs) == ("grpo", 0.28, {"power": 2})
    sft = SftSpec(args={"weight_decay": 0.01})
    assert config_of(SftSpec, sft_arguments(context, sft, 0, 64), sft.args).weight_decay == 0.01


def test_what_only_the_whole_config_can_refuse_is_said_in_a_line(context: StageContext):
    spec = SftSpec(args={"optim": "no-such-optimizer"})
    with pytest.raises(Stop, match=r"TRL rejects sft\.args: .*no-such-optimizer") as stop:
        config_of(SftSpec, sft_arguments(context, spec, 0, 64), spec.args)
    assert len(str(stop.value).splitlines()) == 2


def test_everything_that_we_set_is_refused_among_the_arguments(context: StageContext):
    """One that is set by us and by the recipe would reach TRL twice."""
    generations = [
        GenerationSpec(),
        GenerationSpec(engine="continuous_batching", gpu_memory_utilization=0.5),
        GenerationSpec(engine="vllm", gpu_memory_utilization=0.5),
        GenerationSpec(engine="vllm", mode="server"),
    ]
    held_out = HeldOut(questions=4, every=10)
    for generation in generations:
        own = grpo_arguments(context, GrpoSpec(generation=generation, held_out=held_out), 0)
        assert [name for name in own if field_of(GrpoSpec, name) is None] == []
    own = sft_arguments(context, SftSpec(), 0, 64) | _evaluation(1, SftSpec())
    assert [name for name in own if field_of(SftSpec, name) is None] == []


def test_every_argument_that_we_name_is_one_of_trls():
    import dataclasses

    import trl

    for training in TRAININGS:
        known = {each.name for each in dataclasses.fields(getattr(trl, training.spec.config))}
        assert set(_SHARED | training.spec.trl_fields) <= known


def test_a_checkpoint_is_not_written_while_completions_are_still_to_be_used():
    again: dict[str, Any] = {"args": {"num_iterations": 4}}
    with pytest.raises(ValidationError, match=r"checkpoint_steps \(10\) must be a multiple of args.num_iterations"):
        GrpoSpec(**again)
    with pytest.raises(ValidationError, match=r"held_out.every \(6\) must be a multiple of args.num_iterations"):
        GrpoSpec(**again, checkpoint_steps=8, held_out=HeldOut(questions=8, every=6))
    assert GrpoSpec(**again, checkpoint_steps=8).checkpoint_steps == 8


@pytest.mark.long
def test_a_recipe_without_such_arguments_is_read_without_torch():
    read = "from pathlib import Path; from apprentice.flows.recipe.loading import load_recipe; import sys; "
    toy = Path(__file__).parents[3] / "deployments" / "recipes" / "toy.yaml"
    code = f"{read} load_recipe(Path({str(toy)!r}), ['sft.epochs=1']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
