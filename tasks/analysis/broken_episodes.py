"""Episodes on which the environment failed: how many may, and how their questions count.

In: evaluated episodes of several models. Out: those that count, with a note for the report; or Stop.
"""

import itertools

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.rates import by_question


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
    """The episodes of each model without the questions on which the environment failed in every sample of every
    model, and a note for the report."""
    broken = by_question(itertools.chain(*episodes.values()), lambda record: bool(record.broken))
    left_out = {place for place, of_question in broken.items() if all(of_question)}
    kept = {
        name: [record for record in records if record.place - record.sample not in left_out]
        for name, records in episodes.items()
    }
    broke = {name: sum(bool(record.broken) for record in records) for name, records in episodes.items()}
    if not any(broke.values()):
        return kept, ""
    counts = ", ".join(f"{number} of {name}" for name, number in broke.items())
    return kept, (
        f"The environment or an endpoint failed on episodes: {counts}. "
        f"Questions on which it failed for every model are left out ({len(left_out)}); any other such episode counts "
        "as not right."
    )
