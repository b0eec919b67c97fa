"""Evaluates trained models on held-out questions and guard rails, and promotes the challenger if the gate passes it.

In: models. Out: their evaluations and the outcome for the challenger. Earlier evaluations are cache hits.
"""

from typing import Literal, NamedTuple

from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.analysis.comparison import LABELS
from apprentice.tasks.analysis.ending import decided_by, read_decision
from apprentice.tasks.artifacts.champion import Champions
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    Evaluation,
    KeptRollouts,
    LengthStats,
    Questions,
    Release,
    Verdict,
)
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.gate import gate
from apprentice.tasks.questions import exam
from apprentice.tasks.release import release, weights_of
from apprentice.tasks.sft import sft


class Outcome(NamedTuple):
    """The outcome for the trained model. The release holds the gate's decision."""

    release: Release
    is_champion: bool
    by_these_rules: bool = True
    """Whether the decision used the recipe's current rules."""


def control(
    run: RunContext, recipe: Recipe, base: Checkpoint, kept: KeptRollouts, lengths: LengthStats
) -> dict[str, Checkpoint]:
    """Train SFT to its best on the same rollouts, the model that GRPO must beat; empty if the recipe wants none."""
    spec = recipe.sft.to_its_best() if recipe.sft and recipe.grpo else None
    if spec is None:
        return {}
    return {"control": sft.titled(LABELS["control"])(run, spec, base, kept, lengths, recipe.seed)}


def held_out(
    run: RunContext, recipe: Recipe, questions: Questions, models: dict[str, Checkpoint]
) -> dict[str, Evaluation]:
    """Evaluate every model on the held-out questions; return the evaluations by model name."""
    return {
        name: evaluate.titled(f"Evaluation of {name} in {{environment}}")(
            run, recipe.evaluate, model, recipe.environment, questions, recipe.seed
        )
        for name, model in models.items()
    }


def guard_rails(run: RunContext, recipe: Recipe, models: dict[str, Checkpoint]) -> dict[str, Evaluation]:
    """Evaluate every model on every guard rail; return the evaluations by `<guard>.<model>`."""
    evaluations = {}
    by_guard = guard_questions(run, recipe)
    for guard in recipe.guards:
        tokens = guard.max_new_tokens or recipe.evaluate.max_new_tokens
        spec = recipe.evaluate.model_copy(update={"max_new_tokens": tokens, "questions": guard.questions})
        for name, model in models.items():
            evaluations[f"{guard.name}.{name}"] = evaluate.titled(f"Guard rail {guard.name}: {name}")(
                run, spec, model, guard.environment, by_guard[guard.name], recipe.seed
            )
    return evaluations


def protected(recipe: Recipe, base: Checkpoint) -> Literal["base", "sft"]:
    """Return which model's skills the guard rails protect where there is no champion: the student's, or after SFT if it
    was built here, since random weights have no skill to lose."""
    built = base.stage == "base" and recipe.student.build is not None
    return "sft" if built and recipe.trains_on == ["sft", "grpo"] else "base"


def guard_questions(run: RunContext, recipe: Recipe) -> dict[str, Questions]:
    """Return the questions of every guard rail, by its name."""
    return {
        guard.name: exam(run, guard.environment, recipe.guard_window(index), guard.questions)
        for index, guard in enumerate(recipe.guards)
    }


def promotion(
    run: RunContext,
    recipe: Recipe,
    questions: Questions,
    base: Checkpoint,
    trained: Checkpoint,
    evaluations: dict[str, Evaluation],
    guards: dict[str, Evaluation],
    results: Verdict,
) -> Outcome:
    """Release the trained model with the gate's decision, and move the champion's tag if it passed.

    The gate compares it with the champion, or with the untrained student if there is no champion; on the guard rails
    then with the student that `protected` names.
    """
    champions = Champions(run.store)
    champion = champions.current()
    *_, challenger = evaluations
    weights = weights_of(run.store.fetch(trained))
    allowances = {guard.name: guard.may_fall for guard in recipe.guards}
    if champion is not None and champion.weights == weights and recipe.round is None:  # a round always decides
        rules = read_decision(run.store.fetch(champion))["decided_by"]
        return Outcome(champion, is_champion=True, by_these_rules=rules == decided_by(recipe.gate, allowances))
    if champion is not None:
        evaluations = evaluations | held_out(run, recipe, questions, {"champion": champion})
        guards = guards | guard_rails(run, recipe, {"champion": champion})
    rival: Checkpoint = champion or base
    decision = gate(
        run,
        recipe.gate,
        trained,
        rival,
        {"challenger": evaluations[challenger], "rival": evaluations["champion" if champion else "base"]},
        {
            f"{guard.name}.{role}": guards[f"{guard.name}.{model}"]
            for guard in recipe.guards
            for role, model in (
                ("challenger", challenger),
                ("rival", "champion" if champion else protected(recipe, base)),
            )
        },
        allowances,
        results,
        champions.was_rolled_back(weights),
        run.store.in_reach,
    )
    released = release(run, trained, results, decision)
    return Outcome(released, champions.promote(released, champion))
