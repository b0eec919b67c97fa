"""Out of memory: the settings that would help, in the order in which to change them.

In: a stage's body that loads a model, and its settings. Out: the body, which ends such a failure with a Stop that names
what is left to change, from the recipe's own values; what it had taken is free before anybody reads that.
"""

import functools
import gc
import inspect
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.failures import is_out_of_memory
from apprentice.tasks.settings.spec import Spec
from apprentice.tasks.settings.stages import EvaluateSpec
from apprentice.tasks.settings.training import GrpoSpec, TrainerSpec

Body = TypeVar("Body", bound=Callable[..., Any])
SHARES = {"vllm": 0.3, "continuous_batching": 0.5}
"""Generation's share of the memory where it is left out: TRL's defaults."""


def explain_oom(section: str) -> Callable[[Body], Body]:
    """For a body `body(context, spec, …)` whose settings stand in `section` of a recipe."""

    def around(body: Body) -> Body:
        @functools.wraps(body)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return body(*args, **kwargs)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                _let_go(error)
                spec = inspect.signature(body).bind(*args, **kwargs).arguments["spec"]
                raise Stop(f"Out of memory: {_first_sentences(error)}", _do(section, spec)) from error

        return told  # type: ignore[return-value]

    return around


class Remedy(NamedTuple):
    """Settings of a section by their paths, with what they are to be, and what that does."""

    change: dict[str, Any]
    why: str

    def named(self, section: str) -> str:
        settings = (f"{section}.{path}={json.dumps(value)}" for path, value in self.change.items())
        return f"{' and '.join(settings)} ({self.why})"


def memory_remedies(section: str, spec: Spec, gpus: int, liger: bool = False) -> list[str]:
    """The settings of `section` that can still be changed; that which changes least of what is learned comes first.

    Args:
        liger: Whether its kernels are installed.
    """
    if isinstance(spec, EvaluateSpec):
        ways = _halved("batch_size", spec.batch_size, "the same answers, in smaller batches")
        return [way.named(section) for way in ways if _is_taken(spec, way)]
    assert isinstance(spec, TrainerSpec)
    grpo = spec if isinstance(spec, GrpoSpec) else None
    ways = [*(_of_generation(grpo) if grpo else [])]
    if gpus and liger and not spec.liger:
        ways.append(Remedy({"liger": True}, "fused kernels: the same training"))
    ways += [*_same_training(spec), *_adapters(spec, gpus), *(_smaller_steps(grpo) if grpo else [])]
    return [way.named(section) for way in ways if _is_taken(spec, way)]


def _is_taken(spec: Spec, way: Remedy) -> bool:
    """Whether the recipe with the change is one that its own checks let through."""
    changed = spec.model_dump()
    for path, value in way.change.items():
        *parents, last = path.split(".")
        into = changed
        for name in parents:
            into[name] = into[name] or {}
            into = into[name]
        into[last] = value
    try:
        type(spec).model_validate(changed)
    except ValidationError:
        return False
    return True


def _of_generation(spec: GrpoSpec) -> Iterator[Remedy]:
    """Where it has a share of the trained model's device."""
    engine = spec.generation
    colocated = engine.engine == "vllm" and engine.mode == "colocate"
    if colocated or engine.engine == "continuous_batching":
        share = engine.gpu_memory_utilization or SHARES[engine.engine]
        less = round(share / 2, 2)
        yield Remedy({"generation.gpu_memory_utilization": less}, f"generation's share, now {share:g}")
    if colocated and not engine.enable_sleep_mode:
        yield Remedy({"generation.enable_sleep_mode": True}, "vLLM makes room for the optimizer's step")


def _same_training(spec: TrainerSpec) -> Iterator[Remedy]:
    whole = spec.batch_size * spec.gradient_accumulation
    sizes = (size for size in range(spec.batch_size - 1, 0, -1) if spec.batch_size % size == 0)
    parts = (
        Remedy({"batch_size": size, "gradient_accumulation": whole // size}, "the same step, in smaller parts")
        for size in sizes
    )
    if first := next((way for way in parts if _is_taken(spec, way)), None):
        yield first
    if not spec.gradient_checkpointing:
        yield Remedy({"gradient_checkpointing": True}, "a third more time")
    if not spec.bf16:
        yield Remedy({"bf16": True}, "activations of half the size")


def _adapters(spec: TrainerSpec, gpus: int) -> Iterator[Remedy]:
    """QLoRA needs a GPU."""
    if spec.lora is None:
        yield Remedy({"lora": {}}, "gradients and optimizer of adapters only; raise learning_rate tenfold")
    if gpus and (spec.lora is None or not spec.lora.quantized):
        yield Remedy({"lora.quantized": True}, "frozen weights in 4 bits")


def _smaller_steps(spec: GrpoSpec) -> list[Remedy]:
    ways = _halved("max_completion_length", spec.max_completion_length, "longer completions are cut")
    if spec.gradient_accumulation % 2 == 0:
        fewer = "fewer rollouts a step, which are all generated at once"
        ways += _halved("gradient_accumulation", spec.gradient_accumulation, fewer)
    return ways


def _halved(setting: str, value: int, why: str) -> list[Remedy]:
    return [Remedy({setting: value // 2}, why)] if value > 1 else []


def _do(section: str, spec: Spec) -> str:
    import torch
    from trl.import_utils import is_liger_kernel_available

    ways = memory_remedies(section, spec, torch.cuda.device_count(), is_liger_kernel_available())
    ways.append("a smaller student, or a device with more memory")
    return "Change one of these and run again, in this order:\n" + "\n".join(
        f"  {place}. {way}" for place, way in enumerate(ways, start=1)
    )


def _first_sentences(error: BaseException) -> str:
    """What was asked for and what was there; not the allocator's hints that follow."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    sentences = (lines[0] if lines else type(error).__name__).split(". ")
    return ". ".join(sentences[:3]).rstrip(".") + "."


def _let_go(error: BaseException) -> None:
    """Frees what the failed frames hold: a traceback keeps the model and its activations alive."""
    import torch

    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
