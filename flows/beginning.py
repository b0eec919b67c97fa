"""The beginning of a run: its questions, and the model that it trains.

In: the sections of the recipe that say what is asked and who begins. Out: `Questions`, a `Checkpoint`; Stop for a
checkpoint that does not exist or does not fit.
"""

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import parent
from apprentice.tasks.artifacts.types import BaseStudent, Checkpoint, Questions, Release
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.lineage.locate import checkpoint_named
from apprentice.tasks.lineage.node import node_of
from apprentice.tasks.questions import fresh_questions, questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import StudentSpec
from apprentice.tasks.student import built_alike, student


def question_set(run: RunContext, recipe: Recipe) -> Questions:
    """Return the questions of the run; of a round, without those that earlier ones asked."""
    windows, evaluated = recipe.seed_windows(), recipe.evaluate.questions
    task = recipe.environment.unscaled()
    if recipe.round is None:
        return questions(run, task, windows, evaluated)
    earlier = {str(number): run.store.at(Questions, revision) for number, revision in enumerate(recipe.round.asked)}
    return fresh_questions(run, task, windows, evaluated, earlier, recipe.round.shares)


def new_student(
    run: RunContext, spec: StudentSpec, environment: EnvironmentSpec, questions: Questions, seed: int
) -> Checkpoint:
    """Return the student before training; one that was built alike before is not built again."""
    given = spec, environment, questions, seed
    is_new = spec.build is not None and student.find(run, *given) is None
    if is_new and (found := built_alike(run, *given)) is not None:
        announce.say("A student of these settings exists: it is not built again.")
        return found
    return student(run, *given)


def initial_checkpoint(store: LocalStore, recipe: Recipe) -> Checkpoint | None:
    """Return the checkpoint of this project from which the run continues; None for a new student."""
    if recipe.round is not None and recipe.round.champion is not None:
        found: Checkpoint | None = store.at(Release, recipe.round.champion)
    elif recipe.student.champion:
        found = Champions(store).current()
        if found is None:
            raise Stop(
                f"{recipe.name} has no champion to continue from.",
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
    _check_fits(store, recipe.environment.name, recipe.student, found)
    return found


def _check_fits(store: LocalStore, played: str, spec: StudentSpec, found: Checkpoint) -> None:
    node = node_of(store, parent(found), {})
    environment = (node.environment() or {}).get("name", played)
    if environment != played:
        raise Stop(
            f"{node.ref} was trained in {environment}, and this recipe plays {played}.",
            "Give the recipe another name, or continue from a model of this environment.",
        )
    began = node.nearest(BaseStudent)
    if began is None or spec.goes_on or "spec" not in began.settings:
        return
    if began.settings["spec"] != spec.in_key():
        raise Stop(
            f"{node.ref} descends from another student than this recipe's, with another tokenizer or another size.",
            "Give the recipe another name to begin anew, or restore its student.",
        )
