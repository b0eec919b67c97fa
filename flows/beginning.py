"""Finds what a run begins with: its questions, and the model to train.

In: the recipe, the store. Out: the questions; the student, made or loaded here, or a checkpoint of this project.
"""

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.champion import Champions
from apprentice.tasks.artifacts.lineage import node_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.locate import checkpoint_named
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import BaseStudent, Checkpoint, Questions, Release
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.questions import fresh_questions, questions
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.student import student


def asked(run: RunContext, recipe: Recipe) -> Questions:
    """Return the questions of the run; of a round, without those that earlier ones asked."""
    windows, examined = recipe.seed_windows(), recipe.evaluate.questions
    if recipe.round is None:
        return questions(run, recipe.environment, windows, examined)
    earlier = {str(number): run.store.at(Questions, revision) for number, revision in enumerate(recipe.round.asked)}
    return fresh_questions(run, recipe.environment, windows, examined, earlier, recipe.round.shares)


def beginning(run: RunContext, recipe: Recipe, question_set: Questions) -> Checkpoint:
    """Return the model to train. Raises Stop for a checkpoint that does not exist or does not fit the recipe."""
    return begun_from(run.store, recipe) or student(run, recipe.student, recipe.environment, question_set, recipe.seed)


def begun_from(store: LocalStore, recipe: Recipe) -> Checkpoint | None:
    """Return the checkpoint of this project from which the run goes on; None for a student of its own."""
    if recipe.round is not None and recipe.round.champion is not None:
        found: Checkpoint | None = store.at(Release, recipe.round.champion)
    elif recipe.student.champion:
        found = Champions(store).current()
        if found is None:
            raise Stop(
                f"{recipe.name} has no champion to go on from.",
                "Train one first (student.model or student.build), or use `apprentice improve`, which does.",
            )
    elif recipe.student.checkpoint is not None:
        found = checkpoint_named(store, recipe.student.checkpoint)
        if found is None:
            raise Stop(
                f"{recipe.student.checkpoint} is no model of {recipe.name} in {store.root}.",
                "Take a key, a revision or a tag of a model from a report's lineage (student.checkpoint).",
            )
    else:
        return None
    assert found is not None
    _check_fits(store, recipe, found)
    return found


def _check_fits(store: LocalStore, recipe: Recipe, found: Checkpoint) -> None:
    node = node_of(store, parent(found), {})
    environment = (node.environment() or {}).get("name", recipe.environment.name)
    if environment != recipe.environment.name:
        raise Stop(
            f"{node.ref} was trained in {environment}, and this recipe plays {recipe.environment.name}.",
            "Give the recipe another name, or go on from a model of this environment.",
        )
    began = node.nearest(BaseStudent)
    if began is None or recipe.student.goes_on or "spec" not in began.settings:
        return
    if began.settings["spec"] != recipe.student.in_key():
        raise Stop(
            f"{node.ref} descends from another student than this recipe's, with another tokenizer or another size.",
            "Give the recipe another name to begin anew, or restore its student.",
        )
