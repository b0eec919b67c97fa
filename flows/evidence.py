"""What a finished run knows of the causes of its ending: its episodes, its logs, and its recipe's earlier runs.

In: the stages of a run and what they made. Out: `Evidence`, and the fields that were changed in vain.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.advice.behaviour import Schemas, behaviour, habits_of
from apprentice.tasks.advice.course import Evidence
from apprentice.tasks.advice.ending import evidence_in
from apprentice.tasks.advice.learning import learning_of
from apprentice.tasks.advice.remedies import Recorded
from apprentice.tasks.advice.remedies import value_of as value_in
from apprentice.tasks.analysis.curve_signals import steps_of, value_of
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.judgement.contents import GateDecision, VerdictContents
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.rollouts.thought_length import TRUNCATED

LOGS = 5
"""Logs at the start of a training by reward that are averaged."""


def evidence_of(
    verdict: VerdictContents,
    decision: GateDecision,
    recipe: Recorded,
    environment: EnvironmentSpec,
    played: Models[list[EvaluatedEpisode]],
    kept: Path | None,
    logs: Models[list[dict[str, Any]]],
) -> Evidence:
    """Return all that the run knows, beyond what its verdict says.

    Args:
        played: The held-out episodes of each model.
        kept: The folder of the rows that SFT learned from; None without SFT.
        logs: Of the trained models.
    """
    found = evidence_in(verdict, decision, recipe)
    habits = habits_of(kept) if kept else None
    schemas = _schemas_of(environment)
    limits = value_in(recipe, "evaluate.max_new_tokens"), value_in(recipe, "student.thinking.max_tokens") or 0
    rewards = steps_of(logs.get(verdict.models.last_name, [])) if found.by_reward else []
    began = played.supervised or played.base
    return found._replace(
        start=behaviour(began, schemas, habits, *limits) if found.by_reward else None,
        end=behaviour(played.last, schemas, habits, *limits),
        habits=habits,
        learning=learning_of(logs.supervised or []),
        rows=habits.episodes if habits else None,
        entropy=_mean(rewards[:LOGS], "entropy"),
        clipped=_mean(rewards[:1], "completions/clipped_ratio") or 0.0,  # a rate that is too high spoils the second
        thoughts_cut=_mean(rewards[:1], TRUNCATED) or 0.0,
    )


def _schemas_of(environment: EnvironmentSpec) -> Callable[[int], Schemas]:
    player = environment.make()
    return lambda seed: player.part(seed).schemas


def _mean(log: list[dict[str, Any]], metric: str) -> float | None:
    found = [value for entry in log if (value := value_of(entry, metric)) is not None]
    return fmean(found) if found else None
