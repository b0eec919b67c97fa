"""What the trainings of a run are made of, made before anything is bought.

In: the recipe, the student's tokenizer and layers, this machine. Out: nothing; Stop with the section, what it lacks and
how to give it. TRL's config, optimizer, scheduler, adapters, processes and packages are the real ones, on a toy model.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apprentice.envs.player import Player
from apprentice.tasks.artifacts.types import KEY_LENGTH, Checkpoint
from apprentice.tasks.engine.processes import check_processes
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.thinking import thinking_of
from apprentice.tasks.models.checkpoints import check_adapter, check_targets, layers_of
from apprentice.tasks.models.student_model import built_layers, without_weights
from apprentice.tasks.reporting.broken_packages import imported
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import StudentSpec
from apprentice.tasks.settings.training import TrainerSpec
from apprentice.tasks.training.first_step import check_arguments, check_scheduler, check_trainer
from apprentice.tasks.training.method import Training
from apprentice.tasks.trainings import training_of

LATER = ("matplotlib.figure", "pandas", "scipy.stats", "statsmodels.stats.multitest")
"""What stages after the collection import: pictures, tables, comparisons."""


def check_packages() -> None:
    """Raise Stop for a package that a later stage imports and that cannot be imported."""
    for package in LATER:
        imported(package, "apprentice", "openenv-apprentice")


def check_trainings(
    run: RunContext, trainings: list[TrainerSpec], tokenizer: Any, environment: Player, seed: int, here: bool
) -> None:
    """Raise Stop for a training of which something cannot be made as its section says."""
    for spec in trainings:
        check_scheduler(spec)
        if not here:  # another machine may have other packages and devices
            continue
        check_processes(spec)
        training = training_of(spec.section)
        with TemporaryDirectory() as folder:
            context = StageContext(run, "0" * KEY_LENGTH, Path(folder) / "out", Path(folder) / "scratch")
            own = training.arguments(context, spec, environment, seed)
        check_trainer(spec, own, tokenizer)
        if spec.args:
            step = partial(_first_step, training, spec, tokenizer, environment.schemas)
            check_arguments(spec, step)


def _first_step(
    training: Training[Any], spec: TrainerSpec, tokenizer: Any, tools: list[dict[str, Any]], given: dict[str, Any]
) -> None:
    training.first_step(spec, given, tokenizer, tools)


def check_thinking(student: StudentSpec, tokenizer: Any, name: str) -> None:
    """Raise Stop for a model to continue from that thinks otherwise than the recipe says: its prompt would change."""
    own = thinking_of(tokenizer)
    if own != student.thinking:
        said = "off" if own is None else json.dumps(own.model_dump())
        raise Stop(
            f"{name} was trained with student.thinking: {said}, and the recipe has "
            f"{'off' if student.thinking is None else json.dumps(student.thinking.model_dump())}.",
            f"Set student.thinking to {said}, or train a new student.",
        )


def check_adapters(trainings: list[TrainerSpec], layers: Callable[[], Any], here: bool) -> None:
    adapted = [spec for spec in trainings if spec.lora]
    model = layers() if adapted else None
    for spec in adapted:
        assert spec.lora is not None
        check_targets(model, spec.lora)
        if here:
            check_adapter(model, spec.section, spec.lora)


def layers_ahead(
    run: RunContext, student: StudentSpec, model: tuple[Any, Any] | None, checkpoint: Checkpoint | None, tokenizer: Any
) -> Any:
    """The layers of the model that is trained first, without memory for their weights."""
    if model is not None:
        return without_weights(model[0], student)
    if checkpoint is not None:
        return layers_of(run.store.fetch(checkpoint), run.trusted)
    assert student.build is not None
    return built_layers(student.build, tokenizer)
