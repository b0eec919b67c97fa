"""What a stage is given in a notebook: a result, an artifact, a key, or a folder.

In: one of these. Out: an artifact of the recipe's store. A folder of another place becomes one by its content, by the
stage that a recipe would use for it.
"""

from pathlib import Path
from typing import Any, TypeVar

from apprentice.flows.beginning import beginning
from apprentice.flows.compare_models import checkpoint_of
from apprentice.flows.library.results import Result, open_artifact
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.foreign import pinned_rows
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact, Checkpoint, KeptRollouts, Questions, Rollouts
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import DatasetSpec

A = TypeVar("A", bound=Artifact)
Given = Result[Any] | Artifact | str | Path
"""An earlier call's result, its artifact, a key, or a folder."""


def rollouts_given(run: RunContext, recipe: Recipe, given: Given, questions: Questions) -> Rollouts | KeptRollouts:
    """Return rollouts, or rows that were kept of some; those of a folder are verified. Raises Stop."""
    found = _artifact(run.store, given, (Rollouts, KeptRollouts), "rollouts", "the result of `collect`")
    if isinstance(found, Path):
        spec = pinned_rows(DatasetSpec(path=str(found)))
        return take_rollouts(run, spec, recipe.environment, questions, recipe.collect.unverified)
    return found


def model_given(run: RunContext, recipe: Recipe, given: Given | None, questions: Questions) -> Checkpoint:
    """Return a model: the recipe's student if none is given. Raises Stop."""
    if given is None:
        return beginning(run, recipe, questions)
    if isinstance(given, str) and not Path(given).is_dir():
        return checkpoint_of(run, recipe, given, questions)
    found = _artifact(run.store, given, (Checkpoint,), "a model", "the result of `sft` or `grpo`")
    return checkpoint_of(run, recipe, str(found), questions) if isinstance(found, Path) else found


def _artifact(store: LocalStore, given: Given, kinds: tuple[type[A], ...], wanted: str, made_by: str) -> A | Path:
    """Return an artifact of the store, or the folder of what is none of it. Raises Stop for one of another kind."""
    remedy = f"Give {made_by}, its key, or a folder."
    found: Any = given
    if isinstance(given, Result):
        found = given.artifact if given.store.root == store.root else given.folder
    if not isinstance(found, Artifact):
        folder = Path(found).expanduser()
        if folder.is_dir() and not folder.resolve().is_relative_to(store.root.resolve()):
            return folder
        if isinstance(found, Path) and not folder.is_dir():
            raise Stop(f"There is no folder {folder}.", remedy)
        found = open_artifact(found, store.root).artifact
    if not isinstance(found, kinds):
        raise Stop(f"{found.repository}@{found.key} is {type(found).__name__}, not {wanted}.", remedy)
    return found
