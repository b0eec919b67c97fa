"""What is done with a trained model: held-out questions, guard rails, the gate, the champion's tag.

In: models. Out: their evaluations; what became of the challenger. What was examined before is found, not played again.
"""

from typing import NamedTuple

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.judgements import decided_by, read_decision
from apprentice.tasks.artifacts.champion import Champions
from apprentice.tasks.artifacts.types import (
    BaseStudent,
    Checkpoint,
    Evaluation,
    GrpoCheckpoint,
    Questions,
    Release,
    Verdict,
)
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.gate import gate
from apprentice.tasks.questions import exam
from apprentice.tasks.release import release, weights_of


class Outcome(NamedTuple):
    """What became of the trained model. The gate's decision lies in the release."""

    release: Release
    is_champion: bool
    by_these_rules: bool = True
    """Whether the decision was made by the rules that the recipe has now."""


def held_out(
    work: RunContext, recipe: Recipe, asked: Questions, models: dict[str, Checkpoint]
) -> dict[str, Evaluation]:
    """Every model on the held-out questions, by name."""
    return {
        name: evaluate(work, recipe.evaluate, model, recipe.environment, asked, recipe.seed)
        for name, model in models.items()
    }


def guard_rails(work: RunContext, recipe: Recipe, models: dict[str, Checkpoint]) -> dict[str, Evaluation]:
    """Every model on every guard rail, by `<guard>.<model>`."""
    evaluations = {}
    asked = guard_questions(work, recipe)
    for guard in recipe.guards:
        tokens = guard.max_new_tokens or recipe.evaluate.max_new_tokens
        spec = recipe.evaluate.model_copy(update={"max_new_tokens": tokens, "questions": guard.questions})
        for name, model in models.items():
            questions = asked[guard.name]
            evaluations[f"{guard.name}.{name}"] = evaluate(work, spec, model, guard.environment, questions, recipe.seed)
    return evaluations


def guard_questions(work: RunContext, recipe: Recipe) -> dict[str, Questions]:
    """What every guard rail asks, by its name."""
    return {
        guard.name: exam(work, guard.environment, recipe.guard_window(place), guard.questions)
        for place, guard in enumerate(recipe.guards)
    }


def promotion(
    work: RunContext,
    recipe: Recipe,
    asked: Questions,
    base: BaseStudent,
    trained: GrpoCheckpoint,
    examined: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    judged: Verdict,
) -> Outcome:
    """Compares the trained model with the champion, or with the untrained student where there is none, releases it
    with the verdict on its card, and moves the champion's tag if the gate let it through."""
    champions = Champions(work.store)
    champion = champions.current()
    weights = weights_of(work.store.fetch(trained))
    allowances = {guard.name: guard.may_fall for guard in recipe.guards}
    if champion is not None and champion.weights == weights:
        rules = read_decision(work.store.fetch(champion))["decided_by"]
        return Outcome(champion, is_champion=True, by_these_rules=rules == decided_by(recipe.gate, allowances))
    if champion is not None:
        examined = examined | held_out(work, recipe, asked, {"champion": champion})
        guards = guards | guard_rails(work, recipe, {"champion": champion})
    rival: Checkpoint = champion or base
    decided = gate(
        work,
        recipe.gate,
        trained,
        rival,
        {"challenger": examined["grpo"], "rival": examined[rival.stage]},
        {
            f"{guard.name}.{who}": guards[f"{guard.name}.{model}"]
            for guard in recipe.guards
            for who, model in (("challenger", "grpo"), ("rival", rival.stage))
        },
        allowances,
        judged,
        champions.was_rolled_back(weights),
        work.store.in_reach,
    )
    released = release(work, trained, judged, decided)
    return Outcome(released, champions.promote(released, champion))
