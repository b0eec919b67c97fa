"""The end of a run: the gate's decision, the release, the champion.

In: the pipeline with its evaluations and their verdict. Out: the release, and whether it is the champion.
"""

from typing import TYPE_CHECKING, NamedTuple

from apprentice.tasks.advice.ending import decided_by, read_decision
from apprentice.tasks.artifacts.types import (
    Checkpoint,
    Evaluation,
    ModelName,
    Release,
    Verdict,
)
from apprentice.tasks.gate import gate
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.release import release, weights_of

if TYPE_CHECKING:
    from apprentice.flows.pipeline import Pipeline


class Promotion(NamedTuple):
    """The outcome for the trained model. The release holds the gate's decision."""

    release: Release
    is_champion: bool
    by_these_rules: bool = True
    """Whether the decision used the recipe's current rules."""


def promotion(
    stages: "Pipeline", evaluations: Models[Evaluation], regression_evaluations: dict[str, Evaluation], results: Verdict
) -> Promotion:
    """Release the trained model with the gate's decision, and move the champion's tag if it passed.

    The gate compares it with the champion, or with the untrained student if there is no champion; in
    regression evaluations then with the student that `protected` names.
    """
    run, recipe, base, trained = stages.run, stages.recipe, stages.models.base, stages.models.last
    champions = Champions(run.store)
    champion = champions.current()
    challenger = evaluations.last_name
    weights = weights_of(run.store.fetch(trained))
    allowances = {regression.name: regression.may_fall for regression in recipe.guards}
    if champion is not None and champion.weights == weights and recipe.round is None:  # a round always decides
        rules = read_decision(run.store.fetch(champion)).decided_by
        return Promotion(champion, is_champion=True, by_these_rules=rules == decided_by(recipe.gate, allowances))
    if champion is not None:
        evaluations = Models(evaluations | stages.held_out({ModelName.CHAMPION: champion}))
        regression_evaluations = regression_evaluations | stages.regressions({ModelName.CHAMPION: champion})
    rival: Checkpoint = champion or base
    decision = gate(
        run,
        recipe.gate,
        trained,
        rival,
        {
            "challenger": evaluations[challenger],
            "rival": evaluations[ModelName.CHAMPION if champion else ModelName.BASE],
        },
        {
            f"{regression.name}.{role}": regression_evaluations[f"{regression.name}.{model}"]
            for regression in recipe.guards
            for role, model in (
                ("challenger", challenger),
                ("rival", ModelName.CHAMPION if champion else stages.protected()),
            )
        },
        allowances,
        results,
        champions.was_rolled_back(weights),
        run.store.in_reach,
    )
    released = release(run, trained, results, decision)
    is_champion = champions.promote(released, champion)
    if run.log[-1].state == "ran":  # nothing is asked for a run that made nothing
        run.store.gather()
    return Promotion(released, is_champion)
