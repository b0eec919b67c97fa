"""Decides what the next round does, from the store's history alone.

In: the recipe, the rounds before. Out: the recipe of the next round; its rung and the shares of its kinds of questions
come from the last round's results.
"""

from apprentice.flows.recipe.recipe import Recipe, round_of
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.analysis.diagnose import RULES
from apprentice.tasks.analysis.difficulty import difficulty
from apprentice.tasks.analysis.ending import read_verdict
from apprentice.tasks.analysis.history import PastRound
from apprentice.tasks.artifacts.champion import Champions
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.stages import Shares

LEAST_SHARE = 0.2
"""Share of the easiest kind of question that is still asked, so that it is not forgotten."""
LEAST_SPREAD = 0.1
"""Difference in accuracy between two kinds from which their shares differ."""
REJECTIONS = 3
"""Rejected rounds in a row after which the model has stopped improving."""


def next_round(store: LocalStore, recipe: Recipe, past: list[PastRound], long_run: Questions | None) -> Recipe:
    """Return the recipe of the round after those that were run. Raises Stop where the history is not whole, or no seeds
    are left."""
    champion = Champions(store).current()
    if champion is not None and champion.revision not in [each.release.revision for each in past]:
        raise Stop(
            f"{recipe.name} has a champion, but the store has no history of it: its tag champion-… is gone.",
            "Restore the tags of its models' repository, or begin anew under another recipe name.",
        )
    if not past:
        return round_of(recipe, None)
    rung = _next_rung(recipe, past[-1])
    same_task = not recipe.improve.ladder or recipe.improve.ladder[rung] == _settings(past[-1])
    plan = RoundSpec(
        number=past[-1].number + 1,
        champion=champion.revision if champion else None,
        asked=list(dict.fromkeys(each.questions.revision for each in past)) + ([long_run.revision] if long_run else []),
        kept=list(dict.fromkeys(each.kept.revision for each in past if each.kept)) if recipe.improve.replay else [],
        shares=_shares(past[-1]) if recipe.improve.adapt and same_task else None,
    )
    return round_of(recipe, plan, rung)


def has_stopped(past: list[PastRound]) -> bool:
    """Return whether the last rounds were all rejected, and say what could be changed."""
    last = [each for each in past if each.number][-REJECTIONS:]
    if len(last) < REJECTIONS or any(each.release.promoted for each in last):
        return False
    announce.warn(
        f"The last {REJECTIONS} rounds were rejected: this recipe has stopped improving. More tries or a stronger "
        "teacher (collect.students, teacher.model), a harder task (environment.settings, improve.ladder), longer "
        "training (sft.epochs, grpo.max_steps) or a larger student may help."
    )
    return True


def _next_rung(recipe: Recipe, last: PastRound) -> int:
    """Return the index of the last round's rung, or of the next one if the champion has mastered it."""
    ladder, settings = recipe.improve.ladder, _settings(last)
    rung = ladder.index(settings) if settings in ladder else 0
    found = difficulty(last.judged, recipe.grpo.signals if recipe.grpo else RULES)
    mastered = settings in ladder and found.reading == "too easy" and not found.not_ruled_out
    return min(rung + mastered, max(len(ladder) - 1, 0))


def _settings(last: PastRound) -> dict[str, object]:
    return (last.recipe.get("environment") or {}).get("settings") or {}


def _shares(last: PastRound) -> Shares | None:
    """Return the shares by the trait whose kinds differ most in accuracy; None where no kinds differ."""
    judged = last.node.inputs.get("judged")
    folder = judged.fetch() if judged else None
    kinds: dict[str, dict[str, float]] = {}
    for row in read_verdict(folder)["slices"] if folder else []:
        models = [*row["models"].values()]
        if row["trait"] != "turns" and row["kind"] != "others":  # neither is a property of a question
            champion = models[-1] if last.release.promoted else models[0]
            kinds.setdefault(row["trait"], {})[row["kind"]] = champion["accuracy"]
    spread = {trait: max(of.values()) - min(of.values()) for trait, of in kinds.items()}
    trait = max(spread, key=lambda each: spread[each], default="")
    if not trait or spread[trait] < LEAST_SPREAD:
        return None
    room = {kind: max(LEAST_SHARE, 1 - accuracy) for kind, accuracy in kinds[trait].items()}
    return Shares(trait=trait, of={kind: round(each / max(room.values()), 2) for kind, each in room.items()})
