"""One step of SFT on a toy model, with a recipe's own arguments, before anything is bought.

In: the settings, the student's tokenizer, the tools. Out: nothing; Stop with what TRL's trainer refuses. Its
config accepts some arguments that the trainer, the scheduler or the dataset then refuse.
"""

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from apprentice.tasks.episodes.rendering import training_row
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.visible import one_line
from apprentice.tasks.settings.training import SftSpec
from apprentice.tasks.settings.trl_arguments import config_of
from apprentice.tasks.training.rows import training_dataset, trl_masks
from apprentice.tasks.training.template_check import example_episode

LONGEST = 4096
"""Tokens that the toy model reads."""


def check_sft_arguments(spec: SftSpec, tokenizer: Any, tools: list[dict[str, Any]]) -> None:
    """Raises Stop if TRL cannot make a step with `sft.args`."""
    from trl import SFTTrainer

    rows = training_dataset(tokenizer, [training_row(example_episode(tools[0]["function"]), tools)] * 2)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        own = {"output_dir": folder, "per_device_train_batch_size": 1, "max_length": LONGEST, "report_to": "none"}
        own |= {"lr_scheduler_type": spec.scheduler, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
        own |= {"assistant_only_loss": trl_masks(tokenizer), "num_train_epochs": 1}
        config = config_of("sft", own, spec.args)
        config.max_steps = 1
        try:
            SFTTrainer(model=_toy(tokenizer), processing_class=tokenizer, train_dataset=rows, args=config).train()
        except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
            raise Stop(
                f"TRL's SFTTrainer refuses sft.args ({', '.join(spec.args)}): {one_line(str(error))[:300]}",
                "Correct or remove the argument.",
            ) from error


def _toy(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=LONGEST,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
