"""One step of SFT on a toy model, with a recipe's own arguments, before anything is bought.

In: the settings, the student's tokenizer, the tools. Out: nothing; Stop with what TRL's trainer refuses. Its
config accepts some arguments that the trainer, the scheduler or the dataset then refuse.
"""

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from apprentice.tasks.episodes.rendering import training_row
from apprentice.tasks.models.built_model import built_model
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.visible import one_line
from apprentice.tasks.settings.stages import BuiltStudent
from apprentice.tasks.settings.training import SftSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.rows import training_dataset
from apprentice.tasks.training.template_check import example_episode
from apprentice.tasks.training.trainer import on_one_gpu

TOY = BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=4096)


def check_sft_arguments(spec: SftSpec, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Raises Stop if TRL makes a step without `sft.args`, and cannot make one with them."""
    try:
        _step(spec, spec.args, tokenizer, tools)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError) as error:
        _step(spec, {}, tokenizer, tools)  # raises what is no matter of the arguments
        raise Stop(
            f"TRL's SFTTrainer refuses sft.args ({', '.join(spec.args)}): {one_line(str(error))[:300]}",
            "Correct or remove the argument.",
        ) from error


def _step(spec: SftSpec, given: dict[str, Any], tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    import torch
    from trl import SFTTrainer

    rows = training_dataset(tokenizer, [training_row(example_episode(tools[0]["function"]), tools)] * 2)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        own = {"output_dir": folder, "per_device_train_batch_size": 1, "max_length": TOY.max_positions}
        own |= {"lr_scheduler_type": spec.scheduler, "disable_tqdm": True, "save_strategy": "no", "report_to": "none"}
        own |= {"use_cpu": not torch.cuda.is_available()}
        config = on_one_gpu(config_of("sft", own, given))
        config.max_steps = 1
        model = built_model(TOY, tokenizer, seed=0)
        SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=config).train()
