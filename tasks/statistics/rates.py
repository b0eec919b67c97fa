"""The rates of a model: accuracy, format compliance, mean score and pass@k, with their intervals.

In: evaluated episodes of one model. Out: dictionaries for reports. Several samples of a question are averaged first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from apprentice.tasks.artifacts.types import Evaluation
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.statistics.intervals import Interval, clustered_interval, interval_of, mean_interval

F = TypeVar("F")


def evaluated_interval(played: Evaluation) -> Interval:
    """The interval of an evaluation's accuracy, from its counts."""
    return interval_of(played.accuracy, played.worth or played.n)


def pass_at_k(right: int, samples: int, k: int) -> float:
    """The probability that at least one of `k` samples is right: the unbiased estimator of the Codex paper (Chen et
    al., 2021, section 2.1), that is 1 minus the hypergeometric probability of drawing none."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(0, samples, right, k))


def per_question(records: list[EvaluatedEpisode], metric: str) -> list[float]:
    """One value per question: the mean over its samples."""
    return [sum(samples) / len(samples) for samples in answers_of(records, metric).values()]


def answers_of(records: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[int, list[float]]:
    """The value of each sample of a question, by the place of its first one."""
    figure = {"accuracy": "is_right", "format_compliance": "valid", "mean_score": "score"}[metric]
    return by_question(records, lambda record: float(getattr(record, figure)))


def by_question(records: Iterable[EvaluatedEpisode], figure: Callable[[EvaluatedEpisode], F]) -> dict[int, list[F]]:
    """A figure of each sample of a question, by the place of its first one."""
    found: defaultdict[int, list[F]] = defaultdict(list)
    for record in records:
        found[record.place - record.sample].append(figure(record))
    return dict(found)


def rate(records: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """A rate with its 95% interval, and the number of questions."""
    values = per_question(records, metric)
    ci = clustered_interval(answers_of(records, metric).values())
    return {"n": len(values), metric: sum(values) / len(values), "ci": ci}


def with_intervals(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    """n, each rate with its 95% interval, and pass@k if questions have several samples."""
    scores = per_question(records, "mean_score")
    found = {metric: rate(records, metric) for metric in ("format_compliance", "accuracy")}
    return {
        "n": len(scores),
        **{metric: found[metric][metric] for metric in found},
        "mean_score": sum(scores) / len(scores),
        "ci": {metric: found[metric]["ci"] for metric in found} | {"mean_score": mean_interval(scores)},
        **_passes(records),
    }


def _passes(records: list[EvaluatedEpisode]) -> dict[str, Any]:
    samples = 1 + max(record.sample for record in records)
    if samples == 1:
        return {}
    right = [round(samples * value) for value in per_question(records, "accuracy")]
    rows = []
    for k in range(1, samples + 1):
        passed = [pass_at_k(each, samples, k) for each in right]
        rows.append({"k": k, "pass_at_k": sum(passed) / len(passed), "ci": mean_interval(passed)})
    return {"samples": samples, "pass_at_k": rows}
