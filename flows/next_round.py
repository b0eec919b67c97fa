"""Decides what the next round does, and whether there is one, from the store's history alone.

In: the recipe, the rounds so far. Out: the next round's recipe: its questions, difficulty, student and gate.
"""

from typing import Any

from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.recipe.sections import RoundSpec
from apprentice.tasks.advice.ending import read_verdict
from apprentice.tasks.analysis.difficulty import difficulty
from apprentice.tasks.analysis.past_rounds import PastRound
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.judgement.champions import Champions
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.signals import RewardSignals
from apprentice.tasks.settings.spec import Shares
from apprentice.tasks.statistics.slices import OTHERS

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
        return recipe.round_of(None)
    if stop := nothing_new_to_learn(recipe, past[-1].number + 1, champion is not None):
        raise stop
    level = _next_level(recipe.improve.ladder, recipe.reward_signals(), past[-1])
    same_task = not recipe.improve.ladder or recipe.improve.ladder[level] == _settings(past[-1])
    plan = RoundSpec(
        number=past[-1].number + 1,
        champion=champion.revision if champion else None,
        asked=list(dict.fromkeys(each.questions.revision for each in past)) + ([long_run.revision] if long_run else []),
        kept=list(dict.fromkeys(each.kept.revision for each in past if each.kept)) if recipe.improve.replay else [],
        shares=_shares(past[-1]) if recipe.improve.adapt and same_task else None,
    )
    return recipe.round_of(plan, level)


def nothing_new_to_learn(recipe: Recipe, number: int, has_champion: bool) -> Stop | None:
    """Return why SFT of a round after round 0, which learns from the rows of a dataset, has nothing to learn from."""
    if not recipe.learns_from_rows or recipe.collect.dataset is None:
        return None
    learned = "Round 0 learns from the rows of collect.dataset, and no teacher plays beside them"
    if not recipe.collect.students:
        alone = ", or from GRPO alone (--set sft=off)" if recipe.trains_on[1:] else ""
        return Stop(
            f"{learned}, so SFT of round {number} of {recipe.name} has nothing new to learn from.",
            f"Let rounds learn from the student's own right answers (--set collect.students=8){alone}. To train the "
            "champion on other rows, use `apprentice run` with --set student.champion=true.",
        )
    if not has_champion and recipe.student.build is not None:
        return Stop(
            f"{learned}. No model is champion yet, so round {number} of {recipe.name} would begin from random weights, "
            "which have no right answers to learn from.",
            "Change the recipe (such as sft.epochs) and use `apprentice run` until its gate promotes a model: the "
            "rounds continue from that one.",
        )
    return None


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


def _next_level(levels: list[dict[str, Any]], signals: RewardSignals, last: PastRound) -> int:
    """Return the index of the last round's difficulty level, or of the next one if the champion has mastered it."""
    settings = _settings(last)
    level = levels.index(settings) if settings in levels else 0
    found = difficulty(last.judged, signals)
    mastered = settings in levels and found.reading == "too easy" and not found.not_ruled_out
    return min(level + mastered, max(len(levels) - 1, 0))


def _settings(last: PastRound) -> dict[str, object]:
    return (last.recipe.get("environment") or {}).get("settings") or {}


def _shares(last: PastRound) -> Shares | None:
    """Return the shares by the slice name whose kinds differ most in accuracy; None where no kinds differ."""
    judged = last.node.inputs.get("judged")
    folder = judged.fetch() if judged else None
    kinds: dict[str, dict[str, float]] = {}
    for row in read_verdict(folder).slices if folder else []:
        if row.trait != "turns" and row.kind != OTHERS:  # neither is a property of a question
            champion = row.models.last if last.release.promoted else row.models.base
            kinds.setdefault(row.trait, {})[row.kind] = champion.accuracy
    spread = {slice_name: max(of.values()) - min(of.values()) for slice_name, of in kinds.items()}
    slice_name = max(spread, key=lambda each: spread[each], default="")
    if not slice_name or spread[slice_name] < LEAST_SPREAD:
        return None
    room = {kind: max(LEAST_SHARE, 1 - accuracy) for kind, accuracy in kinds[slice_name].items()}
    return Shares(trait=slice_name, of={kind: round(each / max(room.values()), 2) for kind, each in room.items()})
