"""What the bare scripts are given: the recipe as settings, servers that run, and one folder for all files."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.recipe.recipe import Recipe

Row = dict[str, Any]


class Given(NamedTuple):
    recipe: Recipe
    folder: Path
    server: EnvironmentServer
    teacher_url: str

    def pool(self, size: int | None = None) -> EnvironmentPool:
        return EnvironmentPool(self.recipe.environment, self.server, size)

    def read(self, name: str) -> list[Row]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def write(self, name: str, rows: list[Row]) -> None:
        (self.folder / name).write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))

    def trainer_arguments(self, name: str) -> Row:
        """What both trainers are told, spelt out as in a script."""
        spec, recipe = getattr(self.recipe, name), self.recipe
        return {
            "output_dir": str(self.folder / f"{name}-checkpoints"),
            "per_device_train_batch_size": spec.batch_size,
            "gradient_accumulation_steps": spec.gradient_accumulation,
            "learning_rate": spec.learning_rate,
            "lr_scheduler_type": spec.scheduler,
            "warmup_steps": spec.warmup_steps,
            "adam_epsilon": spec.adam_epsilon,
            "adam_beta2": spec.adam_beta2,
            "activation_checkpointing": spec.gradient_checkpointing,
            "bf16": False,
            "use_cpu": True,
            "seed": recipe.seed,
            "logging_steps": spec.logging_steps,
            "logging_nan_inf_filter": False,
            "save_steps": spec.checkpoint_steps,
            "save_total_limit": 2,
            "disable_tqdm": True,
            "report_to": "trackio",
            "project": "bare",
            "run_name": name,
            **spec.args,
        }
