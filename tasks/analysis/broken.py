"""Decides how questions count on which the environment failed.

In: the episodes of all compared models. Out: the same without the questions that failed for every model.
Why: dropping a question that failed for one model only would favour the model whose answers make the environment fail;
a question that failed for every model says nothing about any of them.
"""

from collections.abc import Iterable

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.errors import Stop


def check_broken(broken: int, of: int, max_failed: float, last: str) -> None:
    """Raises Stop when the environment failed on a larger share of episodes than `max_failed`."""
    if broken > max(max_failed * of, min(1, of - 1)):
        raise Stop(
            f"The environment or the model's endpoint failed on {broken} of {of} episodes, each time again; the "
            f"last one: {last}",
            "Fix that server, exclude the questions that it cannot score (environment.settings), or raise this stage's "
            "max_failed. Then run again.",
        )


def scored(episodes: dict[str, list[EvaluatedEpisode]]) -> tuple[dict[str, list[EvaluatedEpisode]], str]:
    """The episodes of each model without the questions that failed for all models, and a note for the report."""
    left_out = broken_for_all(episodes.values())
    kept = {
        name: [record for record in records if record.place - record.sample not in left_out]
        for name, records in episodes.items()
    }
    broke = {name: sum(bool(record.broken) for record in records) for name, records in episodes.items()}
    if not any(broke.values()):
        return kept, ""
    return kept, (
        f"The environment failed on episodes: {', '.join(f'{number} of {name}' for name, number in broke.items())}. "
        f"Questions on which it failed for every model are left out ({len(left_out)}); any other such episode counts "
        "as not right."
    )


def broken_for_all(models: Iterable[list[EvaluatedEpisode]]) -> set[int]:
    """Questions, by the place of their first sample, on which the environment failed in every sample of every model."""
    by_model = []
    for records in models:
        answered = {record.place - record.sample for record in records if not record.broken}
        by_model.append({record.place - record.sample for record in records} - answered)
    return set.intersection(*by_model) if by_model else set()
