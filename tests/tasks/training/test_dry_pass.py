"""A training's config, optimizer and scheduler are made before anything is bought, with and without arguments."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo_arguments
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.grpo_settings import GrpoSpec, HeldOut
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.training import Scheduler
from apprentice.tasks.sft import arguments_ahead
from apprentice.tasks.training.first_step import check_scheduler, check_trainer
from apprentice.tasks.training.template import fault_of
from tests.students_page import templates, toy_tokenizer

NEED_ONE = {
    "warmup_stable_decay": "num_decay_steps",
    "cosine_with_min_lr": "min_lr_rate",
    "cosine_warmup_with_min_lr": "min_lr_rate",
}


@pytest.fixture
def context(work: RunContext, tmp_path: Path) -> StageContext:
    return StageContext(work, "0" * 20, tmp_path / "out", tmp_path / "scratch")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return prepare_tokenizer(toy_tokenizer(templates()["qwen3"]))


@pytest.mark.parametrize("section", [SftSpec, GrpoSpec], ids=lambda each: each.section)
@pytest.mark.parametrize("name", get_args(Scheduler))
def test_a_scheduler_is_made_or_its_missing_argument_named_and_the_remedy_makes_it(name: str, section: Any):
    spec = section.model_validate({"scheduler": name})
    if name not in NEED_ONE:
        check_scheduler(spec)
        return
    with pytest.raises(Stop, match=f"{section.section}.scheduler: {name} needs {NEED_ONE[name]}") as stop:
        check_scheduler(spec)
    given = re.search(r"such as (\w+)\.args: (\{.*\}\}),", stop.value.remedy)
    assert given is not None
    assert given[1] == section.section
    check_scheduler(section.model_validate({"scheduler": name, "args": yaml.safe_load(given[2])}))


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("cosine_with_min_lr", {"min_lr": 1e-6, "min_lr_rate": 0.1}, "Only one of min_lr or min_lr_rate"),
        ("cosine_with_min_lr", {"num_cycles": 0.5}, "One of min_lr or min_lr_rate"),
        ("cosine", {"num_decay_steps": 10}, "unexpected keyword"),
        ("warmup_stable_decay", {"num_decay_steps": 10, "decay_type": "steep"}, "decay_type"),
        ("warmup_stable_decay", {"num_decay_steps": "10"}, "not supported|unsupported"),
        ("polynomial", {"power": "2"}, "unsupported operand"),
        ("polynomial", {"lr_end": 1.0}, "must be smaller than initial lr"),
    ],
)
def test_arguments_that_a_scheduler_refuses_at_any_step_are_told(name: Any, given: dict[str, Any], says: str):
    with pytest.raises(Stop, match=rf"sft.scheduler: {name} refuses sft.args \(lr_scheduler_kwargs: .*({says})"):
        check_scheduler(SftSpec(scheduler=name, args={"lr_scheduler_kwargs": given}))


def test_a_scheduler_without_steps_to_decay_in_is_made():
    given = {"lr_scheduler_kwargs": {"num_decay_steps": 10}}
    check_scheduler(GrpoSpec(scheduler="warmup_stable_decay", max_steps=1, args=given))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, ""),
        ({"optim": "adafactor"}, ""),
        ({"optim": "sgd", "weight_decay": 0.1}, ""),
        ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, "galore_torch"),
        ({"optim": "apollo_adamw", "optim_target_modules": "all-linear"}, "apollo_torch"),
        ({"optim": "schedule_free_adamw"}, "schedulefree"),
        ({"optim": "lomo"}, "lomo_optim"),
        ({"optim": "adamw_bnb_8bit"}, "bitsandbytes"),
        ({"optim": "adamw_torch_4bit"}, "torchao"),
    ],
    ids=str,
)
def test_the_optimizer_of_each_section_is_made(args: dict[str, Any], says: str, context: StageContext, tokenizer: Any):
    sft, grpo = SftSpec(args=args, held_out=0.1), GrpoSpec(args=args, held_out=HeldOut(questions=4))
    for spec, own in (
        (sft, arguments_ahead(context, sft, EnvironmentSpec(name="echo").make(), 0)),
        (grpo, grpo_arguments(context, grpo, 0)),
    ):
        if not says:
            check_trainer(spec, own, tokenizer)
            continue
        refused = rf"(cannot be made with|rejects) {spec.section}.args.*({says})"
        with pytest.raises(Stop, match=refused) as stop:
            check_trainer(spec, own, tokenizer)
        assert stop.value.remedy


BROKEN = {
    "import": "from transformers import nothing_like_this",
    "attribute": "raise AttributeError('module torch has no attribute float8')",
    "library": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "binary": "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_package_that_a_template_needs_and_cannot_import_is_not_the_template_s_fault(
    body: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "toy_renderer.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))

    class Renders(type(tokenizer)):
        def apply_chat_template(self, *_: Any, **__: Any) -> Any:
            import toy_renderer  # type: ignore[import-not-found]

            return toy_renderer.render()

    monkeypatch.setattr(tokenizer, "__class__", Renders)
    tools = EnvironmentSpec(name="echo").make().schemas
    with pytest.raises((ImportError, AttributeError, OSError, ValueError), match=r"nothing_like|float8|libcuda|dtype"):
        fault_of(tokenizer, tools)
