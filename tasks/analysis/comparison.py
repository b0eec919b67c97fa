"""Compares models on the same questions: paired differences, corrected for multiple comparisons.

In: evaluated episodes of several models. Out: dictionaries for reports, and rows for tables.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from apprentice.tasks.analysis.broken_episodes import scored
from apprentice.tasks.artifacts.types import ModelName
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.judgement.contents import Comparison, Difference, Rates
from apprentice.tasks.judgement.model_names import label
from apprentice.tasks.reporting.safe_text import points
from apprentice.tasks.statistics.differences import PairedTest, holm, paired_difference
from apprentice.tasks.statistics.intervals import percent
from apprentice.tasks.statistics.rates import per_question, rate


def compare_all(
    episodes: dict[str, list[EvaluatedEpisode]], regression_records: dict[str, list[EvaluatedEpisode]]
) -> dict[str, list[dict[str, Any]]]:
    """Compares consecutive models on the held-out questions, and before with after in regression evaluations;
    Holm-corrected over all comparisons. What was trained beside a control is compared with it and with its start."""
    comparisons = []
    names = [*episodes]
    place = names.index(ModelName.CONTROL) if ModelName.CONTROL in episodes else 0
    beyond = [(names[place - 1], names[place + 1])] if 0 < place < len(names) - 1 else []
    for one, other in [*itertools.pairwise(names), *beyond]:
        compared = compare(*in_both(episodes[one], episodes[other]))
        comparisons.append({"from": one, "to": other, "delta_accuracy": compared["delta"]} | compared)
    regressions = []
    for name, places in itertools.groupby(regression_records, key=lambda each: each.rpartition(".")[0]):
        pair, _ = scored({place: regression_records[place] for place in places})
        before, after = pair.values()
        both = {"before": rate(before), "after": rate(after)}
        regressions.append({"guard": name} | both | compare(before, after))
    correct([*comparisons, *regressions])
    return {"comparisons": comparisons, "guards": regressions}


def correct(comparisons: list[dict[str, Any]]) -> None:
    """Adds p_holm to each comparison, corrected over all of them. In place."""
    for each, p in zip(comparisons, holm([each["p_value"] for each in comparisons]), strict=True):
        each["p_holm"] = p


def in_both(
    one: list[EvaluatedEpisode], other: list[EvaluatedEpisode]
) -> tuple[list[EvaluatedEpisode], list[EvaluatedEpisode]]:
    """The first episodes of each, as many as the shorter has: the untrained student may be asked the first questions
    alone (`evaluate.base_questions`)."""
    both = min(len(one), len(other))
    return one[:both], other[:both]


def compare(before: list[EvaluatedEpisode], after: list[EvaluatedEpisode], metric: str = "accuracy") -> dict[str, Any]:
    """The paired difference of a metric. Raises ValueError when the questions are not the same."""
    if [record.question for record in before] != [record.question for record in after]:
        raise ValueError("the two models were not asked the same questions")
    return {"metric": metric} | paired_difference(per_question(before, metric), per_question(after, metric))


def table(models: Mapping[str, Rates]) -> list[dict[str, str]]:
    """One row per model: the three rates with their intervals."""
    return [
        {
            "model": label(name),
            "n": str(model.n),
            "format compliance": percent(model.format_compliance, model.ci["format_compliance"]),
            "accuracy": percent(model.accuracy, model.ci["accuracy"]),
            "mean score": percent(model.mean_score, model.ci["mean_score"]),
        }
        for name, model in models.items()
    ]


def comparison_rows(comparisons: Sequence[Comparison]) -> list[dict[str, str]]:
    """One row per pair of models, differences in percentage points."""
    return [{"from": label(each.from_), "to": label(each.to), **difference_cells(each)} for each in comparisons]


def difference_cells(each: Difference) -> dict[str, str]:
    """The cells of a paired difference: delta, interval, p and corrected p."""
    low, high = each.ci
    return {
        each.metric.replace("_", " "): points(each.delta),
        "95% interval": f"{points(low)} to {points(high)}",
        "p (McNemar)" if each.test == PairedTest.MCNEMAR else "p (permutation)": f"{each.p_value:.2g}",
        "p (Holm)": f"{each.p_holm:.2g}",
    }
