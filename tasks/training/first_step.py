"""What a training is made of is made on a toy model before anything is bought: config, optimizer, scheduler, a step.

In: the settings, the student's tokenizer, the tools. Out: nothing; Stop with what transformers and TRL refuse. Their
configs accept some arguments that the trainer, the scheduler, the dataset or the loss then refuse, and schedulers that
need an argument which nobody gave. With arguments of the recipe's own a step is made, too.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

from apprentice.tasks.engine.processes import forget_launcher
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.models.trl_internals import on_one_gpu
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line
from apprentice.tasks.settings.spec import BuiltStudent
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.settings.trl_arguments import config_of

TOY = BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=4096)
NEEDED: dict[str, dict[str, Any]] = {
    "warmup_stable_decay": {"num_decay_steps": 10},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
}
"""By scheduler of transformers, an example of the arguments without which it cannot be made."""
STEPS = 200
"""Steps for which a schedule's learning rates are computed where a training has more."""
REFUSALS = (
    *(ValueError, TypeError, KeyError, AttributeError, AssertionError),
    *(RuntimeError, ArithmeticError, ImportError, OSError),
)
"""What libraries raise for settings that they do not take, and for packages that they need."""


def check_scheduler(spec: TrainerSpec) -> None:
    """Raises Stop if transformers cannot make the section's scheduler, or one of its learning rates."""
    import torch
    from transformers import get_scheduler

    given = spec.args.get("lr_scheduler_kwargs") or {}
    steps = min(spec.steps_known or STEPS, STEPS)
    warmup = spec.warmup_steps if spec.warmup_steps < steps else steps // 10
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=spec.learning_rate)
    try:
        given = json.loads(given) if isinstance(given, str) else given
        scheduler = get_scheduler(spec.scheduler, optimizer, warmup, steps, given)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
    except REFUSALS as error:
        raise _refused_scheduler(spec, given, error) from error


def _refused_scheduler(spec: TrainerSpec, given: Any, error: Exception) -> Stop:
    name, field = f"{spec.section}.scheduler", f"{spec.section}.args"
    said = one_line(str(error))[:200].rstrip(".")
    missing = NEEDED.get(spec.scheduler, {})
    if missing and not given:
        example = ", ".join(f"{argument}: {value}" for argument, value in missing.items())
        return Stop(
            f"{name}: {spec.scheduler} needs {' and '.join(missing)}, which is not given: {said}.",
            f"Give it, such as {field}: {{lr_scheduler_kwargs: {{{example}}}}}, or choose another {name}.",
        )
    return Stop(
        f"{name}: {spec.scheduler} refuses {field} (lr_scheduler_kwargs: {json.dumps(given)[:100]}): {said}.",
        "Correct or remove the argument"
        + (f"; it needs {' and '.join(missing)}, or what stands for it." if missing else "."),
    )


def check_trainer(spec: TrainerSpec, own: dict[str, Any], tokenizer: Any) -> None:
    """Raises Stop if TRL's config, the optimizer or the scheduler of a training cannot be made.

    Args:
        own: The arguments of TRL's config that the stage gives it.
    """
    given, trainer = spec.args, spec.trainer()
    nothing: Any = []
    forget_launcher()
    try:
        import trl
        from transformers import Trainer

        with _made_config(spec, own, given) as config:
            getattr(trl, trainer)  # imports what it needs
            model = built_model(TOY, tokenizer, seed=0)
            Trainer(model=model, args=config, eval_dataset=nothing).create_optimizer_and_scheduler(STEPS)
    except REFUSALS as error:
        what = f"with {spec.section}.args ({', '.join(given)})" if given else f"with the section {spec.section}"
        raise broken_package(error) or Stop(
            f"TRL's {trainer} cannot be made {what}: {one_line(str(error))[:300].rstrip('.')}.",
            "Install what it names, or change the setting."
            if isinstance(error, ImportError)
            else "Change the setting.",
        ) from error


@contextmanager
def _made_config(spec: TrainerSpec, own: dict[str, Any], given: dict[str, Any]) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        # Liger changes the model's class
        apart = {"output_dir": folder, "report_to": "none", "use_liger_kernel": False}
        yield on_one_gpu(config_of(type(spec), own | apart, given))


def check_arguments(spec: TrainerSpec, step: Callable[[dict[str, Any]], None]) -> None:
    """Raises Stop if TRL makes a step without the section's `args`, and cannot make one with them.

    Args:
        step: Makes the first step of the training on a toy model, with these arguments.
    """
    section, given = spec.section, spec.args
    forget_launcher()
    try:
        step(given)
    except REFUSALS as error:
        if stop := broken_package(error):
            raise stop from error
        step({})  # raises what is no matter of the arguments
        raise Stop(
            f"TRL's {spec.trainer()} refuses {section}.args ({', '.join(given)}): {one_line(str(error))[:300]}",
            "Correct or remove the argument.",
        ) from error


@contextmanager
def config_of_a_step(spec: TrainerSpec, own: dict[str, Any], given: dict[str, Any]) -> Iterator[Any]:
    """Yields TRL's config of one step, which writes nothing that stays."""
    import torch

    own = own | {"lr_scheduler_type": spec.scheduler, "disable_tqdm": True}
    own |= {"save_strategy": "no", "use_cpu": not torch.cuda.is_available()}
    with _made_config(spec, own, given) as config:
        config.max_steps = 1
        yield config
