"""Out of memory ends in the settings to change, in order, and holds nothing."""

import weakref
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from apprentice.tasks.artifacts.types import Artifact, BaseStudent
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.grpo import grpo
from apprentice.tasks.models.memory import explained_oom, memory_remedies
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.failures import failure_of, is_out_of_memory
from apprentice.tasks.settings.generation_engine import GenerationSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec, HeldOut
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import EvaluateSpec
from apprentice.tasks.settings.training import LoraSpec
from apprentice.tasks.sft import sft
from tests.tasks.evaluations import published

TOO_MUCH = 1 << 50
"""Numbers that no machine holds: four pebibytes."""


class Activations:
    """What a failed step had made."""


def step_that_fails(spec: Any, raised: Any = None, made: Any = lambda _: None) -> Any:
    """A stage's body that fails as the device's allocator does, or as the machine's really does."""

    def body() -> None:
        import torch

        activations = Activations()
        made(weakref.ref(activations))
        if raised is not None:
            raise raised
        torch.empty(TOO_MUCH)

    with pytest.raises(Exception) as failed, explained_oom(spec):  # noqa: PT011 (which one is what the tests look at)
        body()
    return failed


def cuda_is_full() -> Exception:
    import torch

    return torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is "
        "free. Process 1 has 38.26 GiB memory in use. If reserved but unallocated memory is large try setting …"
    )


def test_the_devices_memory_and_the_machines_are_told_with_what_to_change():
    device = step_that_fails(GrpoSpec(batch_size=8), cuda_is_full())
    assert device.type is Stop
    words = str(device.value)
    assert words.startswith("Out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")
    assert "try setting" not in words
    assert "  1. grpo.batch_size=4 and grpo.gradient_accumulation=8" in words
    assert words.splitlines()[-1].endswith("a smaller student, or a device with more memory")
    assert failure_of(device.value).boundary == "device"

    machine = step_that_fails(GrpoSpec())
    assert machine.type is Stop
    assert "you tried to allocate" in str(machine.value)
    assert failure_of(machine.value).boundary == "device"


def test_what_the_failed_step_held_is_free_once_the_message_is_read():
    made: list[Any] = []
    failed = step_that_fails(GrpoSpec(), cuda_is_full(), made.append)
    assert made[0]() is None, "the failed frame keeps it alive"
    assert failed.type is Stop


def test_another_failure_is_left_alone():
    assert step_that_fails(GrpoSpec(), RuntimeError("shapes differ")).type is RuntimeError
    assert str(step_that_fails(GrpoSpec(), Stop("no server", "start it")).value) == "no server\n→ start it"


def test_each_stage_that_loads_a_model_names_its_own_settings(
    chain_sum, work: RunContext, monkeypatch: pytest.MonkeyPatch
):
    def full(artifact: Artifact) -> Path:
        raise cuda_is_full()

    nothing: Any = None
    student = published(cast(Any, work.store), BaseStudent, "b" * 20, {}, {"parameters": 1})
    monkeypatch.setattr(work.store, "fetch", full)  # memory runs out as soon as a model is looked for
    with pytest.raises(Stop, match=r"1\. sft\.batch_size=2 and sft\.gradient_accumulation=4"):
        sft(work, SftSpec(), nothing, nothing, nothing, 0)
    with pytest.raises(Stop, match=r"1\. grpo\.gradient_checkpointing=true"):
        grpo(work, GrpoSpec(), nothing, chain_sum, nothing, 0)
    with pytest.raises(Stop, match=r"1\. evaluate\.batch_size=32"):
        evaluate(work, EvaluateSpec(), student, chain_sum, nothing, 0)


def test_what_ran_out_behind_another_error_is_found():
    outer = RuntimeError("the step failed")
    outer.__cause__ = cuda_is_full()
    assert is_out_of_memory(outer)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("wrong"))
    with pytest.raises(ValidationError, match="gpu_memory_utilization") as refused:
        GenerationSpec(gpu_memory_utilization=0.5)
    assert not is_out_of_memory(refused.value), "settings that do not fit are no full memory"


def test_the_settings_come_in_order_from_the_recipes_own_values():
    spec = GrpoSpec(batch_size=8, gradient_accumulation=2, max_completion_length=256, num_generations=4)
    assert [way.partition(" (")[0] for way in memory_remedies("grpo", spec, gpus=1)] == [
        "grpo.batch_size=4 and grpo.gradient_accumulation=4",
        "grpo.gradient_checkpointing=true",
        "grpo.bf16=true",
        "grpo.lora={}",
        "grpo.lora.quantized=true",
        "grpo.max_completion_length=128",
        "grpo.gradient_accumulation=1",
    ]


def test_what_changes_nothing_that_is_learned_comes_first():
    spec = GrpoSpec(batch_size=8, generation=GenerationSpec(engine="vllm"))
    assert [way.partition("=")[0] for way in memory_remedies("grpo", spec, gpus=1, liger=True)] == [
        "grpo.generation.gpu_memory_utilization",
        "grpo.generation.enable_sleep_mode",
        "grpo.liger",
        "grpo.batch_size",
        "grpo.gradient_checkpointing",
        "grpo.bf16",
        "grpo.lora",
        "grpo.max_completion_length",
        "grpo.gradient_accumulation",
    ]
    assert not any("liger" in way for way in memory_remedies("grpo", spec, gpus=0, liger=True))


def test_no_recipe_is_advised_that_its_own_checks_refuse():
    spec = GrpoSpec(batch_size=8, gradient_accumulation=1, num_generations=8, held_out=HeldOut(questions=6))
    assert memory_remedies("grpo", spec, 0)[0].startswith("grpo.batch_size=2 and grpo.gradient_accumulation=4 (")
    two = GrpoSpec(batch_size=1, gradient_accumulation=2, num_generations=2)
    assert not any("gradient_accumulation" in way for way in memory_remedies("grpo", two, 0))


def test_only_what_can_still_be_changed_is_named():
    small = {"gradient_checkpointing": True, "bf16": True, "gradient_accumulation": 1}
    qlora = GrpoSpec(batch_size=1, processes=2, lora=LoraSpec(quantized=True), max_completion_length=1, **small)
    assert memory_remedies("grpo", qlora, gpus=1) == []
    on_a_processor = SftSpec(batch_size=1, lora=LoraSpec(), **small)
    assert memory_remedies("sft", on_a_processor, gpus=0) == []


@pytest.mark.parametrize(("size", "smaller", "more"), [(8, 4, 4), (6, 3, 4), (5, 1, 10), (9, 3, 6)])
def test_a_smaller_batch_makes_the_same_step(size: int, smaller: int, more: int):
    spec = SftSpec(batch_size=size, gradient_accumulation=2)
    assert smaller * more == size * 2
    assert memory_remedies("sft", spec, gpus=0)[0].startswith(
        f"sft.batch_size={smaller} and sft.gradient_accumulation={more} ("
    )


def test_generations_share_of_the_device_is_named_where_it_has_one():
    def ways(generation: GenerationSpec) -> list[str]:
        return [way for way in memory_remedies("grpo", GrpoSpec(generation=generation), 1) if "generation." in way]

    assert ways(GenerationSpec()) == []
    assert ways(GenerationSpec(engine="vllm", mode="server")) == []
    assert [way.partition(" (")[0] for way in ways(GenerationSpec(engine="vllm"))] == [
        "grpo.generation.gpu_memory_utilization=0.15",
        "grpo.generation.enable_sleep_mode=true",
    ]
    batching = GenerationSpec(engine="continuous_batching", gpu_memory_utilization=0.2)
    assert [way.partition(" (")[0] for way in ways(batching)] == ["grpo.generation.gpu_memory_utilization=0.1"]
    vllm = GrpoSpec(generation=GenerationSpec(engine="vllm"))
    assert not any("quantized" in way for way in memory_remedies("grpo", vllm, 1)), "vLLM takes no weights of 4 bits"


def test_every_setting_that_is_named_makes_a_recipe():
    """As `--set` reads it, one after the other."""
    import yaml

    spec = GrpoSpec(batch_size=8, generation=GenerationSpec(engine="continuous_batching"))
    for way in memory_remedies("grpo", spec, gpus=1):
        changed = spec.model_dump(mode="json")
        for setting in way.partition(" (")[0].split(" and "):
            path, _, value = setting.partition("=")
            *parents, last = path.split(".")[1:]
            into = changed
            for name in parents:
                into[name] = into[name] or {}
                into = into[name]
            into[last] = yaml.safe_load(value)
        assert GrpoSpec.model_validate(changed) != spec


def test_an_evaluation_plays_smaller_batches():
    assert memory_remedies("evaluate", EvaluateSpec(batch_size=64), 0) == [
        "evaluate.batch_size=32 (the same answers, in smaller batches)"
    ]
    assert memory_remedies("evaluate", EvaluateSpec(batch_size=1), 0) == []
