"""Out of memory: the settings that would help, in the order in which to change them.

In: a stage's body that loads a model, and its settings. Out: the body, which ends such a failure with a Stop that names
what is left to change, from the recipe's own values; what it had taken is free before anybody reads that.
"""

import functools
import gc
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from apprentice.tasks.errors import Stop
from apprentice.tasks.specs import EvaluateSpec, Spec
from apprentice.tasks.training_specs import GrpoSpec, TrainerSpec

Body = TypeVar("Body", bound=Callable[..., Any])
TOLD = ("memory: you tried to allocate", "CUBLAS_STATUS_ALLOC_FAILED", "gpu_memory_utilization")
"""How it is told other than by its type: by the processor's allocator, by cuBLAS, and by vLLM at its start."""
SHARES = {"vllm": 0.3, "continuous_batching": 0.5}
"""Generation's share of the memory where it is left out: TRL's defaults."""


def told_when_full(section: str) -> Callable[[Body], Body]:
    """For a body `body(bench, spec, …)` whose settings stand in `section` of a recipe."""

    def around(body: Body) -> Body:
        @functools.wraps(body)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return body(*args, **kwargs)
            except Exception as error:
                if not is_full(error):
                    raise
                _let_go(error)
                spec = inspect.signature(body).bind(*args, **kwargs).arguments["spec"]
                raise Stop(f"Out of memory: {_first_sentences(error)}", _do(section, spec)) from error

        return told  # type: ignore[return-value]

    return around


def is_full(error: BaseException) -> bool:
    """Whether memory ran out, the device's or the machine's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return True
        if isinstance(cause, RuntimeError | ValueError) and any(sign in str(cause) for sign in TOLD):
            return True
        cause = cause.__cause__
    return False


def ways_out(section: str, spec: Spec, gpus: int) -> list[str]:
    """The settings of `section` that can still be changed; that which changes least of what is learned comes first."""
    if isinstance(spec, EvaluateSpec):
        return _halved(section, "batch_size", spec.batch_size, "the same answers, in smaller batches")
    assert isinstance(spec, TrainerSpec)
    ways = [*_same_training(section, spec), *_adapters(section, spec, gpus)]
    return ways + (_of_grpo(section, spec) if isinstance(spec, GrpoSpec) else [])


def _same_training(section: str, spec: TrainerSpec) -> Iterator[str]:
    if spec.batch_size > 1:
        smaller = max(size for size in range(1, spec.batch_size) if spec.batch_size % size == 0)
        more = spec.gradient_accumulation * spec.batch_size // smaller
        parts = f"{section}.batch_size={smaller} and {section}.gradient_accumulation={more}"
        yield f"{parts} (the same step, in smaller parts)"
    if not spec.gradient_checkpointing:
        yield f"{section}.gradient_checkpointing=true (a third more time)"
    if not spec.bf16:
        yield f"{section}.bf16=true (activations of half the size)"


def _adapters(section: str, spec: TrainerSpec, gpus: int) -> Iterator[str]:
    """QLoRA needs a GPU, and does not go with vLLM."""
    if spec.lora is None:
        yield f"{section}.lora={{}} (gradients and optimizer of adapters only; raise learning_rate tenfold)"
    by_vllm = isinstance(spec, GrpoSpec) and spec.generation.engine == "vllm"
    if gpus and not by_vllm and (spec.lora is None or not spec.lora.quantized):
        yield f"{section}.lora.quantized=true (frozen weights in 4 bits)"


def _of_grpo(section: str, spec: GrpoSpec) -> list[str]:
    engine = spec.generation
    ways = _halved(section, "max_completion_length", spec.max_completion_length, "longer completions are cut")
    half = spec.batch_size * spec.gradient_accumulation // 2
    if spec.gradient_accumulation % 2 == 0 and half % spec.num_generations == 0:
        fewer = "fewer rollouts a step, which are all generated at once"
        ways += _halved(section, "gradient_accumulation", spec.gradient_accumulation, fewer)
    if engine.engine == "continuous_batching" or (engine.engine == "vllm" and engine.mode == "colocate"):
        share = engine.gpu_memory_utilization or SHARES[engine.engine]
        if (less := round(share / 2, 2)) > 0:
            ways.append(f"{section}.generation.gpu_memory_utilization={less} (generation's share, now {share:g})")
    if engine.engine == "vllm" and engine.mode == "colocate" and not engine.enable_sleep_mode:
        ways.append(f"{section}.generation.enable_sleep_mode=true (vLLM makes room for the optimizer's step)")
    return ways


def _halved(section: str, setting: str, value: int, why: str) -> list[str]:
    return [f"{section}.{setting}={value // 2} ({why})"] if value > 1 else []


def _do(section: str, spec: Spec) -> str:
    import torch

    ways = ways_out(section, spec, torch.cuda.device_count())
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
