"""Questions on which the environment breaks: whom they count against.

In: the episodes of all models that are compared. Out: the same without the questions that broke for everyone.
Why: where one model's answer is scored and the other's breaks the environment, leaving the question out would favour
the one that hands in what cannot be read; where every model's breaks it, nothing is known of any of them.
"""

from collections.abc import Iterable

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.errors import Stop


def check_broken(broken: int, of: int, max_failed: float, last: str) -> None:
    """Raises Stop where the environment broke on more episodes than may fail."""
    if broken > max(max_failed * of, min(1, of - 1)):
        raise Stop(
            f"The environment broke on {broken} of {of} episodes, each time again on a new connection; the last one: "
            f"{last}",
            "Mend its server, or leave out the questions that it cannot score (environment.settings); max_failed of "
            "this stage's section says how many are borne. Then run again.",
        )


def scored(episodes: dict[str, list[EvaluatedEpisode]]) -> tuple[dict[str, list[EvaluatedEpisode]], str]:
    """The episodes of each model without the questions that broke for all of them; and what there is to tell of it."""
    left_out = broken_for_all(episodes.values())
    kept = {
        name: [record for record in records if record.place - record.sample not in left_out]
        for name, records in episodes.items()
    }
    broke = {name: sum(bool(record.broken) for record in records) for name, records in episodes.items()}
    if not any(broke.values()):
        return kept, ""
    return kept, (
        f"The environment broke on episodes: {', '.join(f'{number} of {name}' for name, number in broke.items())}. "
        f"Questions on which it broke for every model are left out ({len(left_out)}); elsewhere such an episode counts "
        "as not right."
    )


def broken_for_all(models: Iterable[list[EvaluatedEpisode]]) -> set[int]:
    """Questions, by their first sample's place, of which every model broke every sample."""
    by_model = []
    for records in models:
        answered = {record.place - record.sample for record in records if not record.broken}
        by_model.append({record.place - record.sample for record in records} - answered)
    return set.intersection(*by_model) if by_model else set()
