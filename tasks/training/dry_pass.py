"""One step of SFT and of GRPO on a toy model, with a recipe's own arguments, before anything is bought.

In: the settings, the student's tokenizer, the tools. Out: nothing; Stop with what TRL's trainers refuse. Their
configs accept some arguments that the trainer, the scheduler, the dataset or the loss then refuse.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

from apprentice.tasks.episodes.rendering import training_row
from apprentice.tasks.models.student_model import built_model
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.text import one_line
from apprentice.tasks.settings.stages import BuiltStudent
from apprentice.tasks.settings.training import GrpoSpec, SftSpec, TrainerSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.rows import training_dataset
from apprentice.tasks.training.template_check import example_episode
from apprentice.tasks.training.trainer import on_one_gpu

TOY = BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=4096)


def check_sft_arguments(spec: SftSpec, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Raises Stop if TRL makes a step without `sft.args`, and cannot make one with them."""
    _check("sft", spec.args, lambda given: _sft_step(spec, given, tokenizer, tools))


def check_grpo_arguments(spec: GrpoSpec, tokenizer: Any) -> None:
    """Raises Stop if TRL makes a step without `grpo.args`, and cannot make one with them; transformers generates."""
    _check("grpo", spec.args, lambda given: _grpo_step(spec, given, tokenizer))


def _check(section: str, given: dict[str, Any], step: Callable[[dict[str, Any]], None]) -> None:
    try:
        step(given)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError) as error:
        step({})  # raises what is no matter of the arguments
        raise Stop(
            f"TRL's {section.upper()}Trainer refuses {section}.args ({', '.join(given)}): {one_line(str(error))[:300]}",
            "Correct or remove the argument.",
        ) from error


def _sft_step(spec: SftSpec, given: dict[str, Any], tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    from trl import SFTTrainer

    rows = training_dataset(tokenizer, [training_row(example_episode(tools[0]["function"]), tools)] * 2)
    with _config("sft", spec, {"per_device_train_batch_size": 1, "max_length": TOY.max_positions}, given) as config:
        model = built_model(TOY, tokenizer, seed=0)
        SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=config).train()


def _grpo_step(spec: GrpoSpec, given: dict[str, Any], tokenizer: Any) -> None:
    from datasets import Dataset
    from trl import GRPOTrainer

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "user"}]}] * 2)
    own = {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 2, "beta": spec.beta}
    with _config("grpo", spec, own, given) as config:
        GRPOTrainer(
            model=built_model(TOY, tokenizer, seed=0),
            processing_class=tokenizer,
            train_dataset=rows,
            reward_funcs=lambda prompts, **_: [float(place) for place in range(len(prompts))],
            args=config,
        ).train()


@contextmanager
def _config(section: str, spec: TrainerSpec, own: dict[str, Any], given: dict[str, Any]) -> Iterator[Any]:
    """Yields TRL's config of one step."""
    import torch

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        own = own | {"output_dir": folder, "lr_scheduler_type": spec.scheduler, "disable_tqdm": True}
        own |= {"save_strategy": "no", "report_to": "none", "use_cpu": not torch.cuda.is_available()}
        config = on_one_gpu(config_of(section, own, given))
        config.max_steps = 1
        yield config
