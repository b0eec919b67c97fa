"""What the trainings of a run are made of, made before anything is bought.

In: the recipe, the student's tokenizer and layers, this machine. Out: nothing; Stop with the section, what it lacks and
how to give it. TRL's config, optimizer, scheduler, adapters, processes and packages are the real ones, on a toy model.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apprentice.envs.player import Player
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.types import KEY_LENGTH, Checkpoint
from apprentice.tasks.engine.processes import check_processes
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.grpo import grpo_arguments
from apprentice.tasks.models.checkpoints import check_adapter, check_targets, layers_of
from apprentice.tasks.models.student_model import built_layers, without_weights
from apprentice.tasks.reporting.errors import imported
from apprentice.tasks.rollouts.rewards import streams_of
from apprentice.tasks.settings.training import GrpoSpec, SftSpec, TrainerSpec
from apprentice.tasks.sft import arguments_ahead
from apprentice.tasks.training.dry_pass import (
    check_grpo_arguments,
    check_scheduler,
    check_sft_arguments,
    check_trainer,
)

LATER = ("matplotlib.figure", "pandas", "scipy.stats", "statsmodels.stats.multitest")
"""What stages after the collection import: pictures, tables, comparisons."""


def trainings_ahead(recipe: Recipe, ahead: list[str]) -> list[TrainerSpec]:
    """The trainings of a run that are ahead: the sections, and SFT's control."""
    control = recipe.sft.to_its_best() if recipe.sft else None
    found = [getattr(recipe, section) for section in ahead]
    return found + ([control] if control and SftSpec.section in ahead else [])


def check_packages() -> None:
    """Raise Stop for a package that a later stage imports and that cannot be imported."""
    for package in LATER:
        imported(package, "apprentice", "openenv-apprentice")


def check_trainings(
    run: RunContext,
    recipe: Recipe,
    trainings: list[TrainerSpec],
    tokenizer: Any,
    environment: Player,
    here: bool,
) -> None:
    """Raise Stop for a training of which something cannot be made as its section says."""
    for spec in trainings:
        check_scheduler(spec)
        if not here:  # another machine may have other packages and devices
            continue
        check_processes(spec)
        with TemporaryDirectory() as folder:
            context = StageContext(run, "0" * KEY_LENGTH, Path(folder) / "out", Path(folder) / "scratch")
            own = _arguments(context, recipe, spec, environment)
        check_trainer(spec, own, tokenizer)
        if isinstance(spec, GrpoSpec) and spec.args:
            check_grpo_arguments(spec, tokenizer)
        elif isinstance(spec, SftSpec) and spec.args:
            check_sft_arguments(spec, tokenizer, environment.schemas)


def _arguments(context: StageContext, recipe: Recipe, spec: TrainerSpec, environment: Player) -> dict[str, Any]:
    """The arguments that a training's stage gives to TRL's config; lengths and steps of an epoch are known later."""
    if isinstance(spec, GrpoSpec):
        return grpo_arguments(context, spec, recipe.seed, streams_of(environment, spec))
    assert isinstance(spec, SftSpec)
    return arguments_ahead(context, spec, recipe.seed)


def check_adapters(trainings: list[TrainerSpec], layers: Callable[[], Any], here: bool) -> None:
    adapted = [spec for spec in trainings if spec.lora]
    model = layers() if adapted else None
    for spec in adapted:
        assert spec.lora is not None
        check_targets(model, spec.lora)
        if here:
            check_adapter(model, spec.section, spec.lora)


def layers_ahead(
    run: RunContext, recipe: Recipe, model: tuple[Any, Any] | None, checkpoint: Checkpoint | None, tokenizer: Any
) -> Any:
    """The layers of the model that is trained first, without memory for their weights."""
    if model is not None:
        return without_weights(model[0], recipe.student)
    if checkpoint is not None:
        return layers_of(run.store.fetch(checkpoint), run.trusted)
    assert recipe.student.build is not None
    return built_layers(recipe.student.build, tokenizer)
